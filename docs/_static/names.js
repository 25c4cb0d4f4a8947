// The theme's buttons that a screen reader would not name, or names otherwise than they read.
document.addEventListener("DOMContentLoaded", () => {
  for (const one of document.querySelectorAll("nav details > summary")) {
    const page = one.closest("li")?.querySelector("a");
    one.setAttribute("aria-label", `Pages of ${page ? page.textContent.trim() : "this section"}`);
  }
  for (const one of document.querySelectorAll(".search-button-field")) one.removeAttribute("aria-label");
});
