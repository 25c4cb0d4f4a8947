// Order of search results: pages that explain come before the generated reference and the changelog.
var Scorer = {
  places: [[/^(start|tutorials)\//, 12], [/^howto\//, 10], [/^(papers|concepts)\//, 8], [/^changelog|\/generated\//, -10]],
  score: ([page, , , , score]) => score + (Scorer.places.find(([pattern]) => pattern.test(page))?.[1] ?? 0),
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
