// Opens reports in headless Chromium at 1280 and 390 px, light and dark: errors, requests, scroll, axe-core.
//
//   npm i axe-core playwright-core    (with PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1, in the folder NODE)
//   NODE=/tmp/npm CHROMIUM=/usr/bin/chromium node benchmarks/report_browser.mjs SHOTS report.html ...
//
// Prints a JSON line for each page and view; exits with 1 where any has a fault.
import { createRequire } from "node:module";
import { basename, resolve } from "node:path";

const require = createRequire(resolve(process.env.NODE ?? ".", "package.json"));
const { chromium } = require("playwright-core");
const axe = require.resolve("axe-core/axe.min.js");
const [shots, ...pages] = process.argv.slice(2);
const args = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args });
let faults = 0;
for (const file of pages) {
  for (const width of [1280, 390]) {
    for (const colorScheme of ["light", "dark"]) {
      const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme, bypassCSP: false });
      const page = await context.newPage(), errors = [], requests = [];
      page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
      page.on("pageerror", (error) => errors.push(String(error)));
      page.on("request", (request) => requests.push(request.url()));
      await page.goto(`file://${resolve(file)}`);
      if (shots) await page.screenshot({ path: `${shots}/${basename(file, ".html")}-${width}-${colorScheme}.png`, fullPage: false });
      await page.evaluate(() => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
      const button = page.locator("thead button").first();
      if (await button.count()) {
        await button.focus();
        await page.keyboard.press("Enter");
      }
      const sorted = await page.locator("th[aria-sort]").count();
      const scroll = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      if (shots) await page.screenshot({ path: `${shots}/${basename(file, ".html")}-${width}-${colorScheme}-open.png`, fullPage: true });
      // The page's own policy allows no other script, so axe goes in through the debugger.
      await page.evaluate(require("node:fs").readFileSync(axe, "utf8"));
      const found = await page.evaluate(() => globalThis.axe.run());
      const serious = found.violations.filter((one) => ["serious", "critical"].includes(one.impact))
        .map((one) => `${one.id}: ${one.nodes.length} such as ${one.nodes[0].html.slice(0, 160)}`);
      const result = { file: basename(file), width, colorScheme, errors, requests: requests.length - 1, scroll, sorted, serious };
      console.log(JSON.stringify(result));
      faults += errors.length + serious.length + result.requests + (scroll > 0 ? 1 : 0);
      await context.close();
    }
  }
}
await browser.close();
process.exit(faults ? 1 : 0);
