// The theme's buttons that a screen reader would not name, or names otherwise than they read.
document.addEventListener("DOMContentLoaded", () => {
  for (const one of document.querySelectorAll("nav details > summary")) {
    const page = one.closest("li")?.querySelector("a");
    one.setAttribute("aria-label", `Pages of ${page ? page.textContent.trim() : "this section"}`);
  }
  for (const one of document.querySelectorAll(".search-button-field")) one.removeAttribute("aria-label");
  // The parameters of a long signature are definitions without terms: no list to a screen reader.
  for (const one of document.querySelectorAll("dt.sig dl, dt.sig dd")) one.setAttribute("role", "presentation");
  for (const one of document.querySelectorAll(".highlight-bash pre, .highlight-console pre, .command pre")) whole(one);
});

// Where a command is wrapped, a word such as --benchmark.name is not broken at its hyphens.
function whole(block) {
  const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT), texts = [];
  while (walker.nextNode()) texts.push(walker.currentNode);
  for (const text of texts.filter((one) => one.data.includes("-"))) {
    text.replaceWith(...text.data.split(/([^\s-]{0,24}-[^\s]{1,40})/).map((part, place) => {
      if (place % 2 === 0) return part;
      const span = document.createElement("span");
      span.className = "whole";
      span.textContent = part;
      return span;
    }));
  }
}
