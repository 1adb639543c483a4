// Does things to the pool through the screen, for scripts/web/browser.js.
"use strict";
const fs = require("fs");
const http = require("http");
const path = require("path");
const { execFileSync, spawnSync } = require("child_process");
const assert = require("assert");

const { WORK, BUILD, SHOTS } = process.env;

exports.run = async ({ browser, state, check, axe, watch, origin, pool }) => {
  const at = encodeURIComponent(pool);
  const context = await browser.newContext({ storageState: state, viewport: { width: 1200, height: 850 } });
  const page = await context.newPage();
  const seen = watch(page);
  // The exit status says how well the pools are.
  const canopy = (...words) => spawnSync(path.join(BUILD, "canopy"), words, { encoding: "utf8" }).stdout;

  // From a form that is filled in: its plan, and the yes.
  const plan = async (page) => {
    await page.getByRole("button", { name: "Show what it would do" }).click();
    await page.getByRole("button", { name: "Do it" }).waitFor({ timeout: 30000 });
  };
  const finish = async (page, ends = /It has ended: done/) => {
    await page.getByRole("button", { name: "Do it" }).click();
    await page.getByText(ends).waitFor({ timeout: 60000 });
  };

  await check("action: a disk is added, from the page of the pool", async () => {
    await page.goto(`${origin}/pool?at=${at}`);
    await page.getByRole("link", { name: "Add a disk" }).click();
    await axe(page);
    await page.getByLabel("Directory").fill(`${WORK}/disk4`);
    await plan(page);
    assert.ok((await page.locator("pre", { hasText: `+ ${WORK}/disk4=RW` }).count()) > 0, "the plan has the branch");
    assert.ok((await page.locator("pre.command").innerText()).startsWith("canopy add --yes -- "));
    assert.ok(!canopy("status", "--json").includes("disk4"), "nothing is done yet");
    await axe(page);
    await page.screenshot({ path: `${SHOTS}/action-plan.png`, fullPage: true });
    await finish(page);
    await axe(page);
    await page.goto(`${origin}/pool?at=${at}`);
    await page.locator(".card", { hasText: `${WORK}/disk4` }).waitFor();
    assert.ok(fs.readFileSync(`${WORK}/etc/media.toml`, "utf8").includes("disk4"), "the file has it as well");
  });
  await check("action: a mode changes, by keyboard alone", async () => {
    await page.goto(`${origin}/do?what=mode&at=${at}&branch=${encodeURIComponent(`${WORK}/disk4`)}`);
    await page.getByLabel("Mode").focus();
    await page.keyboard.press("ArrowDown");
    const press = async (name) => {
      await page.getByRole("button", { name }).waitFor({ timeout: 30000 });
      for (let presses = 0; presses < 60; presses += 1) {
        await page.keyboard.press("Tab");
        if (await page.evaluate((name) => document.activeElement.textContent === name, name)) break;
      }
      await page.keyboard.press("Enter");
    };
    await press("Show what it would do");
    await press("Do it");
    await page.getByText(/It has ended: done/).waitFor({ timeout: 30000 });
    assert.ok(/"mode": "NC"/.test(canopy("status", "--json")));
  });
  await check("action: an option changes, with its difference before", async () => {
    await page.goto(`${origin}/options?at=${at}&q=minfreespace`);
    await page.getByRole("link", { name: "Change minfreespace" }).click();
    await page.getByLabel("New value").fill("2M");
    await plan(page);
    await page.getByText("+ minfreespace = 2M").waitFor();
    await page.screenshot({ path: `${SHOTS}/action-option.png`, fullPage: true });
    await finish(page);
    assert.strictEqual(canopy("get", pool, "minfreespace").trim(), "2097152");
  });
  await check("action: an option that is wrong says why", async () => {
    await page.goto(`${origin}/do?what=set&at=${at}&option=minfreespace`);
    await page.getByLabel("New value").fill("-x <b>");
    await page.getByRole("button", { name: "Show what it would do" }).click();
    await page.getByText(/It is not possible: .*minfreespace/).waitFor();
    assert.strictEqual(await page.getByRole("button", { name: "Do it" }).count(), 0);
  });
  const file = () => fs.readFileSync(`${WORK}/etc/media.toml`, "utf8");
  await check("action: rules are edited, with the difference and what would move", async () => {
    await page.goto(`${origin}/pool?at=${at}`);
    await page.getByRole("link", { name: "Change rules" }).click();
    const row = page.locator("fieldset", { hasText: "New" }).first();
    await row.getByLabel("Files").fill("films/two*");
    await row.getByLabel("Or branches").fill(`${WORK}/disk3`);
    await axe(page);
    await plan(page);
    await page.screenshot({ path: `${SHOTS}/rules-plan.png`, fullPage: true });
    const shown = await page.locator("pre[aria-label=Plan]").innerText();
    for (const part of ["+ rules = films/two*=", "media.toml:", "+ [[rule]]", '+ path = "films/two*"', "films/two.mkv"]) {
      assert.ok(shown.includes(part), `${part}: ${shown}`);
    }
    assert.ok(!file().includes("[[rule]]"), "nothing is written yet");
    await finish(page);
    assert.ok(file().includes('[[rule]]\npath = "films/two*"'));
    // It goes again: its row is emptied.
    await page.goto(`${origin}/do?what=rules&at=${at}`);
    const old = page.locator("fieldset", { hasText: "Rule 1" });
    await old.getByLabel("Files").fill("");
    await old.getByLabel("Or branches").fill("");
    await plan(page);
    await finish(page);
    assert.ok(!file().includes("[[rule]]"));
  });
  await check("action: tiers and what the trash keeps are edited", async () => {
    await page.goto(`${origin}/do?what=tiers&at=${at}`);
    await page.locator("fieldset", { hasText: "Tier 1" }).getByLabel("Files leave it").fill("fuller than 75 %");
    await plan(page);
    await finish(page);
    assert.ok(canopy("get", pool, "tiers").startsWith(`fast=${WORK}/disk1|fuller than 75%;large=`));
    await page.goto(`${origin}/trash?at=${at}`);
    await page.getByRole("link", { name: "Change what it keeps" }).click();
    await page.locator("fieldset", { hasText: "Rule of the trash 1" }).getByLabel("Kept for").fill("4 days");
    await plan(page);
    await finish(page);
    assert.ok(file().includes('keep = "4 days"'));
  });
  await check("action: a read cache is made, used and taken away", async () => {
    fs.mkdirSync(`${WORK}/ssd`);
    await page.goto(`${origin}/pool?at=${at}`);
    await page.getByRole("link", { name: "Change read caches" }).click();
    const row = page.locator("fieldset").first();
    await row.getByLabel("Directories for copies").fill(`${WORK}/ssd`);
    await row.getByLabel("Files", { exact: true }).fill("films/**");
    await row.getByLabel("Copies take at most").fill("1 GiB");
    await row.getByLabel("A file is copied").fill("opened");
    await axe(page);
    await plan(page);
    await axe(page);
    await page.screenshot({ path: `${SHOTS}/cache-plan.png`, fullPage: true });
    const shown = await page.locator("pre[aria-label=Plan]").innerText();
    for (const part of ["media.toml:", "+ [[cache]]", `+ branches = ["${WORK}/ssd"]`, '+ size = "1G"', '+ when = "opened"']) {
      assert.ok(shown.includes(part), `${part}: ${shown}`);
    }
    assert.ok(!file().includes("[[cache]]"), "nothing is written yet");
    await finish(page);
    assert.ok(file().includes("[[cache]]"));
    fs.readFileSync(`${pool}/films/two.mkv`);
    for (let tries = 0; tries < 300 && !fs.existsSync(`${WORK}/ssd/.canopy-cache`); tries += 1) await page.waitForTimeout(100);
    assert.ok(fs.existsSync(`${WORK}/ssd/.canopy-cache`), "what is read is copied");
    await page.goto(`${origin}/do?what=cache&at=${at}`);
    const old = page.locator("fieldset", { hasText: "Cache 1" });
    for (const box of await old.locator("input[type=text]:not([inputmode])").all()) await box.fill("");
    await plan(page);
    await finish(page);
    assert.ok(!file().includes("[[cache]]"));
  });
  await check("action: a job is scheduled, changed and taken off", async () => {
    await page.goto(`${origin}/jobs`);
    await page.getByRole("link", { name: "Schedule a job" }).click();
    await page.getByLabel("Name").fill("even-out");
    await page.getByLabel("Command").fill("balance --to 5");
    await page.getByLabel("When", { exact: true }).fill("every Sunday at 04:00");
    await axe(page);
    await plan(page);
    await page.getByText(/even-out runs every Sunday at 04:00, next: /).waitFor();
    await page.screenshot({ path: `${SHOTS}/schedule-plan.png`, fullPage: true });
    await finish(page);
    await page.goto(`${origin}/jobs`);
    await page.getByRole("link", { name: /^Change ?: even-out/ }).click();
    assert.strictEqual(await page.getByLabel("Command").inputValue(), "balance --to 5");
    await page.getByLabel("When", { exact: true }).fill("every month");
    await plan(page);
    await finish(page);
    assert.ok(file().includes('when = "every month"'));
    await page.goto(`${origin}/jobs`);
    await page.screenshot({ path: `${SHOTS}/jobs-two.png`, fullPage: true });
    await page.getByRole("link", { name: /^Take off ?: even-out/ }).click();
    await plan(page);
    await finish(page);
    assert.ok(!file().includes("even-out"));
  });
  await check("action: the speed is measured", async () => {
    await page.goto(`${origin}/doctor`);
    await page.getByRole("link", { name: "Measure the speed of this machine" }).click();
    await page.getByLabel("What", { exact: true }).selectOption("dd");
    await page.getByLabel("A short measurement").check();
    await axe(page);
    await plan(page);
    await finish(page);
    await page.getByText("QUICK: figures mean little").waitFor();
    await page.screenshot({ path: `${SHOTS}/bench.png`, fullPage: true });
  });
  await check("action: a file comes back from the trash", async () => {
    await page.goto(`${origin}/trash?at=${at}&q=b]`);
    await page.screenshot({ path: `${SHOTS}/trash.png`, fullPage: true });
    await page.getByRole("link", { name: "Bring back films/a*[b].txt" }).click();
    await plan(page);
    await finish(page);
    assert.strictEqual(fs.readFileSync(`${pool}/films/a*[b].txt`, "utf8"), "kept\n");
  });
  await check("action: what cannot be undone asks twice", async () => {
    fs.unlinkSync(`${pool}/films/a*[b].txt`);
    await page.goto(`${origin}/trash?at=${at}`);
    await page.getByRole("link", { name: "Empty the trash" }).click();
    await plan(page);
    await page.getByRole("button", { name: "Do it" }).click();
    await page.waitForTimeout(300);
    assert.ok(await page.getByRole("button", { name: "Do it" }).isVisible(), "it has begun without the second yes");
    await page.getByLabel("I know that this cannot be undone").check();
    await axe(page);
    await page.screenshot({ path: `${SHOTS}/action-sure.png`, fullPage: true });
    await finish(page);
    await page.goto(`${origin}/trash?at=${at}`);
    await page.getByText("It is empty.").waitFor();
  });
  for (const [what, title, fill] of [
    ["verify", "Check files", async () => page.getByLabel("Store checksums").check()],
    ["balance", "Even out disks", async () => page.getByLabel("How far").fill("10%")],
    ["tier", "Apply tiers and rules", async () => page.getByLabel("At any time").check()],
    ["dup", "Copy files to further disks", async () => page.getByLabel("Of", { exact: true }).fill("films/two.mkv")],
    ["dedup", "Remove surplus copies", async () => {}],
    ["job", "Run a job now", async () => page.getByLabel("Job").selectOption("verify")],
  ]) {
    await check(`action: ${title}`, async () => {
      await page.goto(`${origin}/do?what=${what}&at=${at}`);
      await page.getByRole("heading", { name: title }).waitFor();
      await fill();
      await plan(page);
      const sure = page.getByLabel("I know that this cannot be undone");
      if (await sure.count()) await sure.check();
      await finish(page);
      if (what === "dup") assert.strictEqual(JSON.parse(canopy("which", "--json", `${pool}/films/two.mkv`)).paths[0].copies.length, 2);
      if (what === "dedup") assert.strictEqual(JSON.parse(canopy("which", "--json", `${pool}/films/two.mkv`)).paths[0].copies.length, 1);
    });
  }
  await check("action: a message that nobody gets says so", async () => {
    await page.goto(`${origin}/actions`);
    await page.getByRole("link", { name: "Send a trial message" }).click();
    await plan(page);
    await finish(page, /It has ended: exit status 1/);
    assert.ok((await page.locator("pre.output").innerText()).includes("nobody is told"));
  });
  await check("action: somebody is told, changed and told no longer, and nobody sees the address", async () => {
    const got = [];
    const server = http.createServer((request, response) => {
      got.push(request.url);
      request.resume().on("end", () => response.end());
    });
    await new Promise((resolve) => { server.listen(0, "127.0.0.1", resolve); });
    const list = () => fs.readFileSync(`${WORK}/etc/notify.toml`, "utf8");
    const shown = [];
    const see = async (page) => shown.push(await page.content());
    await page.goto(`${origin}/events`);
    await page.getByRole("link", { name: "Tell somebody" }).click();
    await page.getByLabel("Name").fill("phone");
    await page.getByLabel("Webhook: URL").fill(`http://127.0.0.1:${server.address().port}/s3cret`);
    await page.getByLabel("Tell of").selectOption("problem");
    await axe(page);
    await page.screenshot({ path: `${SHOTS}/receiver-form.png`, fullPage: true });
    await plan(page);
    assert.ok(!fs.existsSync(`${WORK}/etc/notify.toml`), "nothing is written yet");
    await page.getByText('+ webhook = "http://127.0.0.1').waitFor();
    await see(page);
    await page.screenshot({ path: `${SHOTS}/receiver-plan.png`, fullPage: true });
    await finish(page);
    await see(page);
    assert.ok(list().includes("/s3cret") && list().includes('name = "phone"'), list());
    await page.getByRole("link", { name: "Send a trial message" }).click();
    await plan(page);
    await finish(page);
    assert.deepStrictEqual(got, ["/s3cret"]);
    const phone = await browser.newContext({ storageState: state, viewport: { width: 360, height: 740 }, isMobile: true });
    const small = await phone.newPage();
    await small.goto(`${origin}/events`);
    await small.getByRole("heading", { name: "Who is told" }).waitFor();
    await axe(small);
    const wider = await small.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wider <= 0, `it is ${wider} pixels wider than the window`);
    await small.screenshot({ path: `${SHOTS}/receivers-phone.png`, fullPage: true });
    await small.goto(`${origin}/do?what=receiver&name=phone`);
    await small.screenshot({ path: `${SHOTS}/receiver-form-phone.png`, fullPage: true });
    const out = await small.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(out <= 0, `the form is ${out} pixels wider than the window`);
    await see(small);
    await phone.close();
    await page.goto(`${origin}/events`);
    await see(page);
    await page.getByRole("link", { name: /^Change ?: phone/ }).click();
    assert.strictEqual(await page.getByLabel("Tell of").inputValue(), "problem");
    await page.getByLabel("Again").selectOption("daily");
    await plan(page);
    await finish(page);
    assert.ok(list().includes('repeat = "daily"') && list().includes("/s3cret"), list());
    await page.goto(`${origin}/events`);
    await page.getByRole("link", { name: /^Take off ?: phone/ }).click();
    await plan(page);
    await see(page);
    await page.getByLabel("I know that this cannot be undone").check();
    await finish(page);
    assert.ok(!list().includes("phone"), list());
    await page.goto(`${origin}/actions`);
    await see(page);
    assert.ok(shown.every((text) => !text.includes("s3cret")));
    server.close();
  });
  await check("action: emptying a disk is seen, paused, continued and stopped", async () => {
    await page.goto(`${origin}/pool?at=${at}`);
    await page.locator(".card", { hasText: `${WORK}/disk2` }).getByRole("link", { name: /^Empty a disk/ }).click();
    await page.getByLabel("At most, a second").fill("8M");
    await plan(page);
    await page.getByRole("button", { name: "Do it" }).click();
    await page.getByRole("button", { name: "Pause" }).click();
    await page.getByRole("button", { name: "Go on" }).waitFor();
    await page.screenshot({ path: `${SHOTS}/action-paused.png`, fullPage: true });
    await axe(page);
    await page.waitForTimeout(2500);
    await page.getByRole("button", { name: "Go on" }).click();
    await page.getByRole("button", { name: "Pause" }).waitFor();
    await page.waitForTimeout(1500);
    await page.getByRole("button", { name: "Stop" }).click();
    await page.getByText(/It has ended: stopped/).waitFor({ timeout: 30000 });
    await page.screenshot({ path: `${SHOTS}/action-stopped.png`, fullPage: true });
    assert.strictEqual(fs.statSync(`${pool}/films/two.mkv`).size, 120 << 20, "the file is whole");
  });
  await check("action: a disk is emptied and leaves, after a pause", async () => {
    const before = fs.readdirSync(`${pool}/films`).length;
    await page.goto(`${origin}/do?what=drain&at=${at}&branch=${encodeURIComponent(`${WORK}/disk2`)}`);
    await page.getByLabel("Then remove it").check();
    await page.getByLabel("At most, a second").fill("40M");
    await plan(page);
    await page.getByRole("button", { name: "Do it" }).click();
    await page.getByRole("button", { name: "Pause" }).click();
    await page.getByRole("button", { name: "Go on" }).waitFor();
    await page.waitForTimeout(1500);
    await page.getByRole("button", { name: "Go on" }).click();
    await page.getByText(/It has ended: /).waitFor({ timeout: 60000 });
    await page.screenshot({ path: `${SHOTS}/action-drained.png`, fullPage: true });
    assert.ok((await page.getByText(/It has ended: done/).count()) === 1, await page.locator("main").innerText());
    assert.ok(!canopy("status", "--json").includes(`"${WORK}/disk2"`), "it has left");
    assert.strictEqual(fs.readdirSync(`${pool}/films`).length, before);
  });
  await check("action: all of it without JavaScript", async () => {
    const plain = await browser.newContext({ storageState: state, javaScriptEnabled: false });
    const page = await plain.newPage();
    await page.goto(`${origin}/do?what=add&at=${at}`);
    await page.getByLabel("Directory").fill(`${WORK}/disk2`);
    await page.getByRole("button", { name: "Show what it would do" }).click();
    await page.getByRole("button", { name: "Do it" }).waitFor({ timeout: 30000 });
    await page.getByRole("button", { name: "Do it" }).click();
    await page.getByText(/It has ended: done/).waitFor({ timeout: 30000 });
    await plain.close();
    assert.ok(canopy("status", "--json").includes(`"${WORK}/disk2"`));
  });
  await check("action: on a phone, in the dark", async () => {
    const phone = await browser.newContext({
      storageState: state, viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true, colorScheme: "dark",
    });
    const page = await phone.newPage();
    await page.goto(`${origin}/do?what=verify&at=${at}`);
    await plan(page);
    const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wider <= 0, `it is ${wider} pixels wider than the window`);
    await page.screenshot({ path: `${SHOTS}/action-phone.png`, fullPage: true });
    await axe(page);
    await finish(page);
    await phone.close();
  });
  await check("action: who only reads sees no way to act", async () => {
    const [address] = execFileSync(path.join(BUILD, "canopy-web"), ["token", "--read-only", "--state", `${WORK}/state`], { encoding: "utf8" }).split("\n");
    const other = await browser.newContext();
    const page = await other.newPage();
    await page.goto(address);
    await page.waitForURL(`${origin}/`);
    for (const address of [`/pool?at=${at}`, "/actions", `/trash?at=${at}`, `/options?at=${at}`, "/jobs", "/doctor"]) {
      await page.goto(origin + address);
      assert.strictEqual(await page.locator("a[href^='/do?']").count(), 0, address);
      await axe(page);
    }
    assert.strictEqual((await page.goto(`${origin}/do?what=notify`)).status(), 403);
    await other.close();
  });
  await check("action: the map shows what is where", async () => {
    await page.goto(`${origin}/map?at=${at}`);
    await page.getByText(/^Counted/).waitFor({ timeout: 30000 });
    await axe(page);
    await page.screenshot({ path: `${SHOTS}/map-counted.png`, fullPage: true });
    await page.getByRole("link", { name: "films" }).click();
    await page.getByRole("link", { name: "The directory above" }).waitFor({ timeout: 30000 });
  });
  await check("action: a pool goes while something runs in it, and comes back", async () => {
    await page.goto(`${origin}/do?what=drain&at=${at}&branch=${encodeURIComponent(`${WORK}/disk1`)}`);
    await page.getByLabel("At most, a second").fill("2M");
    await plan(page);
    await page.getByRole("button", { name: "Do it" }).click();
    await page.getByRole("button", { name: "Stop" }).waitFor();
    const other = await context.newPage();
    await other.goto(`${origin}/pool?at=${at}`);
    canopy("umount", "--lazy", pool);
    await other.getByText(/no pool is mounted at/).waitFor({ timeout: 30000 });
    await page.getByRole("button", { name: "Stop" }).click({ timeout: 5000 }).catch(() => {});
    await page.getByText(/It has ended: /).waitFor({ timeout: 60000 });
    await page.screenshot({ path: `${SHOTS}/action-pool-gone.png`, fullPage: true });
    await page.goto(`${origin}/actions`);
    await page.getByRole("link", { name: "Mount a pool" }).click();
    await page.getByLabel("Name").fill("media");
    await plan(page);
    await finish(page);
    await other.goto(`${origin}/pool?at=${at}`);
    await other.getByRole("heading", { name: /media/ }).first().waitFor();
    assert.strictEqual(fs.statSync(`${pool}/films/one.mkv`).size, 230 << 20, "the file is whole");
    await other.close();
  });
  await check("action: a pool is made, mounted and unmounted", async () => {
    await page.goto(`${origin}/actions`);
    await page.getByRole("link", { name: "Make a pool" }).click();
    for (const box of await page.locator("input[name=branch]").all()) await box.uncheck();
    await page.getByLabel("Other directories").fill(`${WORK}/new1\n${WORK}/new2\n`);
    await page.getByLabel("Name", { exact: true }).fill("second");
    await page.getByLabel("Where the pool appears").fill(`${WORK}/second`);
    await page.getByLabel("At boot").selectOption("nothing");
    await axe(page);
    await plan(page);
    await page.getByText(/minfreespace/).waitFor();
    await page.screenshot({ path: `${SHOTS}/new-plan.png`, fullPage: true });
    assert.ok(!fs.existsSync(`${WORK}/etc/second.toml`), "nothing is written yet");
    await finish(page);
    await page.getByRole("link", { name: "Mount a pool" }).click();
    await plan(page);
    await finish(page);
    fs.writeFileSync(`${WORK}/second/a`, "a");
    const second = encodeURIComponent(`${WORK}/second`);
    await page.goto(`${origin}/pool?at=${second}`);
    await page.getByRole("link", { name: "Unmount the pool" }).click();
    await plan(page);
    await finish(page);
    assert.ok(!fs.existsSync(`${WORK}/second/a`));
  });
  await check("action: the list has what was done", async () => {
    await page.goto(`${origin}/actions`);
    await page.getByText(/canopy drain/).first().waitFor();
    await axe(page);
    await page.screenshot({ path: `${SHOTS}/actions-done.png`, fullPage: true });
    assert.deepStrictEqual([seen.elsewhere, seen.dialogs], [[], []]);
    // What was refused is told to the console by the browser itself.
    assert.deepStrictEqual(seen.complaints.filter((line) => !line.includes("status of 4")), []);
  });
  await context.close();
};
