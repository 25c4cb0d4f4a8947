// Order of search results: pages that explain come before the generated reference and the changelog.
var Scorer = {
  score: ([page, , , , score]) =>
    score + (/^(start|tutorials|howto|papers|concepts)\//.test(page) ? 10 : /^changelog|\/generated\//.test(page) ? -10 : 0),
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
