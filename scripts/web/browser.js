// Drives Chromium through the screen, for scripts/web-tests.sh.
"use strict";
const { chromium } = require("playwright-core");
const fs = require("fs");
const { execFileSync } = require("child_process");
const assert = require("assert");

const { WORK, INVITATION, SHOTS, PICTURE, FILTER } = process.env;
const AXE = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const LARGEST = 200 * 1024;
const origin = new URL(INVITATION).origin;
const pool = `${WORK}/media`;
const at = encodeURIComponent(pool);
const PAGES = {
  pools: "/",
  pool: `/pool?at=${at}`,
  warnings: "/warnings",
  events: "/events",
  search: `/files?at=${at}&name=mkv`,
  options: `/options?at=${at}`,
  files: `/files?at=${at}&path=films`,
  file: `/files?at=${at}&path=films%2Fone.mkv`,
  log: "/log",
  actions: "/actions",
  activity: "/activity",
  map: `/map?at=${at}`,
  new: "/new",
  trash: `/trash?at=${at}`,
  jobs: "/jobs",
  doctor: "/doctor",
  form: `/do?what=drain&at=${at}&branch=${encodeURIComponent(`${WORK}/disk2`)}`,
  "form-free": `/do?what=add&at=${at}`,
  "form-rules": `/do?what=rules&at=${at}`,
  "form-tiers": `/do?what=tiers&at=${at}`,
  "form-cache": `/do?what=cache&at=${at}`,
  "form-keep": `/do?what=keep&at=${at}`,
  "form-schedule": `/do?what=schedule&at=${at}&job=verify`,
  "form-option": `/do?what=set&at=${at}&option=minfreespace`,
};
let passed = 0;
const failed = [];

// `first`: the others need it.
async function check(name, body, first = false) {
  if (FILTER && !first && !name.includes(FILTER)) return;
  try {
    await body();
    passed += 1;
    console.log(`ok   ${name}`);
  } catch (error) {
    failed.push(name);
    console.log(`FAIL ${name}\n     ${String(error.stack || error).split("\n").slice(0, 8).join("\n     ")}`);
  }
}

// Keeps what a page asks for and complains of.
function watch(page) {
  const seen = { elsewhere: [], complaints: [], dialogs: [] };
  page.on("request", (request) => {
    if (!request.url().startsWith(origin)) seen.elsewhere.push(request.url());
  });
  page.on("console", (message) => {
    if (message.type() === "error") seen.complaints.push(message.text());
  });
  page.on("pageerror", (error) => seen.complaints.push(String(error)));
  page.on("dialog", (dialog) => { seen.dialogs.push(dialog.message()); dialog.dismiss(); });
  return seen;
}

async function axe(page) {
  // The policy of pages allows no script within them; the debugger's is not one.
  await page.evaluate(AXE);
  const result = await page.evaluate(() => window.axe.run(document, {
    runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
  }));
  const told = result.violations.map((one) => `${one.id}: ${one.help}: ${one.nodes.slice(0, 2).map((node) => node.html).join(" ")}`);
  assert.deepStrictEqual(told, []);
}

(async () => {
  const browser = await chromium.launch({
    executablePath: "/usr/bin/chromium",
    args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"],
  });
  const first = await browser.newContext({ viewport: { width: 1200, height: 850 } });
  const page = await first.newPage();
  const seen = watch(page);

  await check("nobody is in without a token", async () => {
    await page.goto(origin);
    assert.strictEqual(new URL(page.url()).pathname, "/enter");
    await axe(page);
    await page.screenshot({ path: `${SHOTS}/enter.png`, fullPage: true });
  });
  await check("the address that was printed lets in, and leads to the pools", async () => {
    await page.goto(INVITATION);
    await page.waitForURL(`${origin}/`);
    await page.getByRole("heading", { name: "Pools", exact: true }).waitFor();
  }, true);
  const state = await first.storageState();
  assert.ok(state.cookies.every((cookie) => cookie.httpOnly && cookie.sameSite === "Strict"));

  const kinds = [
    ["desktop-light", { viewport: { width: 1200, height: 850 }, colorScheme: "light" }],
    ["desktop-dark", { viewport: { width: 1200, height: 850 }, colorScheme: "dark" }],
    ["phone-light", { viewport: { width: 360, height: 740 }, colorScheme: "light", isMobile: true, hasTouch: true }],
    // 200 % of a window of 1280 pixels.
    ["double-dark", { viewport: { width: 640, height: 512 }, deviceScaleFactor: 2, colorScheme: "dark" }],
    ["no-script", { viewport: { width: 1200, height: 850 }, javaScriptEnabled: false }],
  ];
  for (const [kind, options] of kinds) {
    const context = await browser.newContext({ ...options, storageState: state });
    for (const [name, address] of Object.entries(PAGES)) {
      await check(`${kind}: ${name}`, async () => {
        const page = await context.newPage();
        const seen = watch(page);
        let bytes = 0;
        page.on("response", (response) => { bytes += Number(response.headers()["content-length"] || 0); });
        const answer = await page.goto(origin + address, { waitUntil: "load" });
        assert.strictEqual(answer.status(), 200);
        await page.screenshot({ path: `${SHOTS}/${kind}-${name}.png`, fullPage: !["options", "log"].includes(name) });
        if (options.javaScriptEnabled !== false) {
          const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
          assert.ok(wider <= 0, `it is ${wider} pixels wider than the window`);
          await axe(page);
          assert.deepStrictEqual(seen.complaints, []);
        }
        assert.deepStrictEqual([seen.elsewhere, seen.dialogs], [[], []]);
        assert.ok(bytes > 1000 && bytes < LARGEST, `${bytes} bytes`);
        await page.close();
      });
    }
    await context.close();
  }

  await check("the keyboard alone reaches a file", async () => {
    await page.goto(origin);
    await page.keyboard.press("Tab");
    assert.strictEqual(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
    await page.keyboard.press("Enter");
    await page.goto(`${origin}/files?at=${at}`);
    for (let presses = 0; presses < 40; presses += 1) {
      await page.keyboard.press("Tab");
      if (await page.evaluate(() => document.activeElement.id === "path")) break;
    }
    await page.keyboard.type("films/one.mkv");
    await page.keyboard.press("Enter");
    await page.getByText("The pool reads this one.").waitFor();
  });
  await check("names that want to be more are text", async () => {
    await page.goto(origin + PAGES.files);
    const text = await page.locator(".entries").innerText();
    assert.ok(text.includes("<img src=x onerror=alert(1)>\"'&.mkv"), text);
    assert.ok(text.includes("\\u{202e}gnp.exe\\n"), text);
    await page.getByRole("link", { name: "<img src=x" }).click();
    await page.getByText("The pool reads this one.").waitFor();
    assert.deepStrictEqual(seen.dialogs, []);
  });
  await check("a search that ends changes its page in place, and what is typed meanwhile stays", async () => {
    const goesOn = page.getByText("goes on in the background");
    // One search at times ends before its page is there.
    for (const part of ["o", "e", "i", "a", "n", "m"]) {
      await page.goto(`${origin}/files?at=${at}&name=${part}`);
      await page.evaluate(() => { window.same = true; });
      if (await goesOn.isVisible()) break;
    }
    assert.ok(await goesOn.isVisible(), "each has ended before its page was there");
    await page.locator("#path").fill("films/on");
    await page.getByText(/^Searched /).waitFor();
    await page.waitForTimeout(1500);
    assert.deepStrictEqual(
      [await page.evaluate(() => window.same), await page.locator("#path").inputValue()], [true, "films/on"],
    );
  });
  if (PICTURE) {
    // As readers see it, not as the test is laid out.
    await page.setViewportSize({ width: 1000, height: 760 });
    await page.goto(origin + PAGES.pool);
    await page.evaluate((work) => {
      const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      while (walk.nextNode()) walk.currentNode.data = walk.currentNode.data.replaceAll(work, "/mnt");
    }, WORK);
    await page.screenshot({ path: PICTURE });
    await page.setViewportSize({ width: 1200, height: 850 });
  }
  await check("a disk that is pulled shows on the open page, and its return too", async () => {
    await page.goto(origin + PAGES.pool);
    const card = page.locator(".card", { hasText: `${WORK}/disk3` });
    await card.locator(".badge.good").waitFor();
    // The keyboard stays where it is.
    await page.getByRole("link", { name: "Options" }).last().focus();
    execFileSync("umount", ["-l", `${WORK}/disk3`]);
    await card.locator(".badge.problem").waitFor({ timeout: 60000 });
    assert.strictEqual(await page.evaluate(() => document.activeElement.textContent), "Options");
    assert.ok((await page.locator("#said").innerText()).includes("Changed"));
    await page.getByText("What to do:").first().waitFor();
    assert.strictEqual(await page.getByText("Branches in no tier").count(), 0, "it has left its tier");
    await axe(page);
    await page.screenshot({ path: `${SHOTS}/disk-pulled.png`, fullPage: true });
    execFileSync("mount", ["-o", "loop", `${WORK}/image3`, `${WORK}/disk3`]);
    await card.locator(".badge.good").waitFor({ timeout: 60000 });
  });
  await check("a page that nobody sees asks for nothing, and is up to date when it is seen again", async () => {
    const hide = (hidden) => page.evaluate((hidden) => {
      Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }, hidden);
    await page.goto(origin + PAGES.pool);
    const used = page.getByText(/^\d+ MiB of 487 MiB used, /).last();
    const before = await used.innerText();
    const asked = [];
    page.on("request", (request) => asked.push(request.url()));
    await hide(true);
    fs.writeFileSync(`${WORK}/disk3/more`, Buffer.alloc(64 << 20, 1));
    execFileSync("sync", ["-f", `${WORK}/disk3`]);
    await page.waitForTimeout(6000);
    assert.deepStrictEqual([await used.innerText(), asked], [before, []]);
    await hide(false);
    await page.waitForFunction((before) => !document.body.innerText.includes(before), before, { timeout: 30000 });
  });
  await require("./actions.js").run({ browser, state, check, axe, watch, origin, pool });
  await require("./life.js").run({ browser, state, check, axe, watch, origin });
  await require("./cockpit.js").run({ browser, check, axe, pool });
  await check("leaving ends the session in every window", async () => {
    const other = await first.newPage();
    await other.goto(origin);
    await page.getByRole("button", { name: "Leave" }).click();
    await page.getByText("You have left.").waitFor();
    await other.waitForURL(`${origin}/enter`, { timeout: 20000 });
    await page.goto(`${origin}/warnings`);
    assert.strictEqual(new URL(page.url()).pathname, "/enter");
  });
  await browser.close();
  console.log(`${passed} passed, ${failed.length} failed`);
  process.exitCode = failed.length ? 1 : 0;
})();
