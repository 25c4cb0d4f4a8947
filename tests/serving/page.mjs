// Uses the server's page by keyboard in headless Chromium, at 1280 and 390 px, light and dark.
//
//   NODE=FOLDER (with axe-core and playwright-core) CHROMIUM=/usr/bin/chromium node page.mjs URL [SHOTS]
//
// Prints a JSON line for each view.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";

const require = createRequire(resolve(process.env.NODE ?? ".", "package.json"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const [url, shots] = process.argv.slice(2);
const args = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args });
for (const width of [1280, 390]) {
  for (const colorScheme of ["light", "dark"]) {
    const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme });
    const page = await context.newPage(), errors = [], foreign = [];
    page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
    page.on("pageerror", (error) => errors.push(String(error)));
    page.on("request", (request) => request.url().startsWith(url) || foreign.push(request.url()));
    await page.goto(url);
    const texts = (list) => page.locator(`#${list} li > p:first-child`).allTextContents();
    const done = async () => page.waitForFunction(() => document.getElementById("said").textContent !== "…");
    // Only the keyboard: Tab goes from field to field.
    await page.locator("#user").focus();
    await page.keyboard.type("ann");
    await page.keyboard.press("Enter");
    await done();
    const before = await texts("documents");
    await page.locator("#text").focus();
    await page.keyboard.type(`<b>added</b> at ${width} ${colorScheme}`);
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await page.waitForFunction((n) => document.querySelectorAll("#documents li").length > n, before.length);
    const added = await texts("documents");
    await page.locator("#question").focus();
    await page.keyboard.type("about tea");
    await page.keyboard.press("Control+Enter");
    await page.waitForFunction(() => document.getElementById("plain").textContent !== "");
    await done();
    const shown = await texts("shown");
    const personal = await page.locator("#personal").textContent(), plain = await page.locator("#plain").textContent();
    const why = await page.locator("#shown .why").allTextContents();
    await page.locator("#shown button").first().focus();
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelector("#shown button[aria-pressed=true]"));
    const scroll = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    if (shots) await page.screenshot({ path: `${shots}/${width}-${colorScheme}.png`, fullPage: true });
    await page.evaluate(axe);
    const found = await page.evaluate(() => globalThis.axe.run());
    const faults = found.violations.map((one) => `${one.id}: ${one.nodes[0].html.slice(0, 160)}`);
    await page.locator("#documents li:last-child button").focus();
    await page.keyboard.press("Enter");
    await page.waitForFunction((n) => document.querySelectorAll("#documents li").length === n, before.length);
    console.log(JSON.stringify({ width, colorScheme, before, added, shown, personal, plain, why, scroll, faults, errors, foreign,
      after: await texts("documents") }));
    await context.close();
  }
}
await browser.close();
