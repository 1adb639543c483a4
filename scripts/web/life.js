// A life with disks without a terminal, for scripts/web-tests.sh: a pool of four disks is made in the browser, files are copied,
// a disk is pulled, the message arrives, a new disk takes its place, copies are made again, a removed file comes back. What a
// person does with their hands (mount disks, copy files, pull one) the script does; all else goes through the pages.
"use strict";
const fs = require("fs");
const http = require("http");
const path = require("path");
const { spawn, spawnSync, execFileSync } = require("child_process");
const assert = require("assert");

const { WORK, BUILD, SHOTS } = process.env;
const pool = `${WORK}/life`;
const disk = (number) => `${WORK}/life${number}`;

// Loop devices, as disks that somebody has put in and mounted.
function putIn(number) {
  fs.mkdirSync(disk(number));
  execFileSync("truncate", ["-s", "300M", `${WORK}/life-image${number}`]);
  execFileSync("mkfs.ext4", ["-q", "-m", "0", `${WORK}/life-image${number}`]);
  execFileSync("mount", ["-o", "loop", `${WORK}/life-image${number}`, disk(number)]);
}

// Takes messages as somebody's phone would.
async function receiver() {
  const messages = [];
  const server = http.createServer((request, answer) => {
    let body = "";
    request.on("data", (part) => { body += part; });
    request.on("end", () => { messages.push(JSON.parse(body)); answer.end(); });
  });
  await new Promise((resolve) => { server.listen(0, "127.0.0.1", resolve); });
  return { messages, server, port: server.address().port };
}

async function until(what, test, patience = 120000) {
  for (const end = Date.now() + patience; Date.now() < end;) {
    if (await test()) return;
    await new Promise((resolve) => { setTimeout(resolve, 250); });
  }
  throw new Error(`waited in vain for ${what}`);
}

exports.run = async ({ browser, state, check, axe, watch, origin }) => {
  await check("life: a pool from four disks to a disk that died, without a terminal", async () => {
    [1, 2, 3, 4].forEach(putIn);
    const phone = await receiver();
    fs.writeFileSync(`${WORK}/notify.toml`, `[[notify]]\nwebhook = "http://127.0.0.1:${phone.port}/"\n`);
    const context = await browser.newContext({ storageState: state, viewport: { width: 1200, height: 850 } });
    const page = await context.newPage();
    const seen = watch(page);
    let step = 0;
    const shot = (name) => { step += 1; return page.screenshot({ path: `${SHOTS}/life-${step}-${name}.png`, fullPage: true }); };
    const plan = async () => {
      await page.getByRole("button", { name: "Show what it would do" }).click();
      await page.getByRole("button", { name: "Do it" }).waitFor({ timeout: 60000 });
    };
    const finish = async (ends = /It has ended: done/) => {
      await page.getByRole("button", { name: "Do it" }).click();
      await page.getByText(ends).waitFor({ timeout: 120000 });
    };
    let teller;
    try {
      // The guided start, and what belongs to it: two copies of photos, and a trash.
      await page.goto(`${origin}/`);
      await page.goto(`${origin}/new`);
      for (const box of await page.locator("input[name=branch]").all()) await box.uncheck();
      await page.getByLabel("Other directories").fill([1, 2, 3, 4].map(disk).join("\n"));
      await page.getByLabel("Name", { exact: true }).fill("life");
      await page.getByLabel("Where the pool appears").fill(pool);
      await page.getByLabel("New files go").selectOption("most-free");
      await page.getByLabel("At boot").selectOption("nothing");
      await plan();
      await shot("made-plan");
      await finish();
      await page.getByRole("link", { name: "Mount a pool" }).click();
      await plan();
      await finish();
      await page.goto(`${origin}/`);
      await page.getByRole("link", { name: pool }).click();
      await page.locator(".card", { hasText: disk(4) }).locator(".badge.good").waitFor();
      await page.getByRole("link", { name: "Change rules" }).click();
      const rule = page.locator("fieldset").first();
      await rule.getByLabel("Files").fill("photos/**");
      await rule.getByLabel("Copies").fill("2");
      await plan();
      await finish();
      await page.goto(`${origin}/trash?at=${encodeURIComponent(pool)}`);
      await page.getByRole("link", { name: "Change what it keeps" }).click();
      const kept = page.locator("fieldset").first();
      await kept.getByLabel("Files").fill("**");
      await kept.getByLabel("Kept for").fill("30 days");
      await plan();
      await finish();
      // Somebody is told from now on, as the service would.
      teller = spawn(path.join(BUILD, "canopy"), ["notify", "run", "--file", `${WORK}/notify.toml`, "--gather", "2", "--fstab-file", `${WORK}/no-fstab`], { stdio: "ignore" });
      // Files are copied.
      fs.mkdirSync(`${pool}/photos`);
      fs.mkdirSync(`${pool}/films`);
      const photo = (number) => Buffer.alloc(1 << 20, number);
      for (let number = 0; number < 20; number += 1) fs.writeFileSync(`${pool}/photos/${number}.jpg`, photo(number));
      fs.writeFileSync(`${pool}/films/one.mkv`, Buffer.alloc(64 << 20, 7));
      const copies = () => {
        const count = (number) => [1, 2, 3, 4, 5].map(disk).filter((dir) => fs.existsSync(`${dir}/photos/${number}.jpg`)).length;
        return Array.from({ length: 20 }, (_, number) => count(number));
      };
      const apply = async (name) => {
        await page.goto(`${origin}/pool?at=${encodeURIComponent(pool)}`);
        await page.getByRole("link", { name: "Apply tiers and rules" }).click();
        await page.getByLabel("At any time").check();
        await plan();
        await shot(name);
        await finish();
      };
      await apply("copies-plan");
      assert.deepStrictEqual(copies(), Array(20).fill(2));
      // A disk is pulled: one that has photos.
      const gone = [1, 2, 3, 4].find((number) => fs.readdirSync(disk(number)).includes("photos") && fs.readdirSync(`${disk(number)}/photos`).length > 0
        && !fs.existsSync(`${disk(number)}/films/one.mkv`));
      await page.goto(`${origin}/pool?at=${encodeURIComponent(pool)}`);
      execFileSync("umount", ["-l", disk(gone)]);
      // The message arrives, and says what to do; so does the page that was open.
      const told = () => phone.messages.flatMap((message) => message.events).find((event) => JSON.stringify(event.subject).includes(disk(gone)));
      await until("the message", told);
      assert.ok(told().fix.length > 10, JSON.stringify(told()));
      const card = page.locator(".card", { hasText: disk(gone) });
      await card.locator(".badge.problem").waitFor({ timeout: 60000 });
      await shot("disk-pulled");
      await axe(page);
      for (let number = 0; number < 20; number += 1) assert.ok(fs.readFileSync(`${pool}/photos/${number}.jpg`).equals(photo(number)), `photo ${number}`);
      // A new one is put in, and takes its place by what the page of the pool offers at the dead one.
      putIn(5);
      await card.getByRole("link", { name: /^Replace a disk/ }).click();
      await page.getByLabel("New directory").fill(disk(5));
      await plan();
      await shot("replace-plan");
      await finish();
      // It leads to what is done next.
      await page.getByRole("link", { name: "Apply tiers and rules" }).waitFor();
      await page.goto(`${origin}/pool?at=${encodeURIComponent(pool)}`);
      await page.locator(".card", { hasText: disk(5) }).locator(".badge.good").waitFor({ timeout: 60000 });
      assert.strictEqual(await page.locator(".card", { hasText: disk(gone) }).count(), 0);
      assert.ok(fs.readFileSync(`${WORK}/etc/life.toml`, "utf8").includes(disk(5)), "the next mount has it too");
      await apply("copies-again-plan");
      assert.deepStrictEqual(copies(), Array(20).fill(2));
      await until("the message that it is over", () => phone.messages.some((message) => message.events.some((event) => event.phase === "ends"
        && JSON.stringify(event.subject).includes(disk(gone)))));
      // All of it is in the history, and a search finds a file by a part of its name.
      await page.goto(`${origin}/events?q=${encodeURIComponent(disk(gone))}`);
      for (const word of ["begins", "is over"]) await page.locator(".entries .badge", { hasText: word }).first().waitFor();
      await axe(page);
      await shot("events");
      await page.goto(`${origin}/files?at=${encodeURIComponent(pool)}`);
      await page.getByLabel("Name contains").fill("NE.MK");
      await page.getByRole("button", { name: "Search" }).click();
      await page.getByRole("link", { name: "films/one.mkv" }).waitFor({ timeout: 30000 });
      await axe(page);
      await shot("search");
      // Something is removed by mistake, and comes back.
      fs.unlinkSync(`${pool}/films/one.mkv`);
      await page.goto(`${origin}/trash?at=${encodeURIComponent(pool)}&q=one`);
      await page.getByRole("link", { name: /^Bring back ?films\/one.mkv/ }).click();
      await plan();
      await finish();
      assert.ok(fs.readFileSync(`${pool}/films/one.mkv`).equals(Buffer.alloc(64 << 20, 7)));
      await page.goto(`${origin}/pool?at=${encodeURIComponent(pool)}`);
      await shot("over");
      await page.getByRole("link", { name: "Unmount the pool" }).click();
      await plan();
      await finish();
      assert.deepStrictEqual([seen.elsewhere, seen.dialogs], [[], []]);
    } finally {
      await shot("end").catch(() => {});
      if (teller) {
        teller.kill();
        await new Promise((resolve) => { teller.once("exit", resolve); });
      }
      phone.server.close();
      spawnSync(path.join(BUILD, "canopy"), ["umount", "--lazy", pool]);
      [1, 2, 3, 4, 5].forEach((number) => spawnSync("umount", ["-l", disk(number)]));
      await context.close();
    }
  });
};
