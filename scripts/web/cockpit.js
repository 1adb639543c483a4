// The page of cockpit-canopy in a real Cockpit without a login, for scripts/web-tests.sh, where cockpit-ws is installed.
"use strict";
const fs = require("fs");
const net = require("net");
const path = require("path");
const { spawn, spawnSync } = require("child_process");
const assert = require("assert");

const { WORK, BUILD, SHOTS } = process.env;
const COCKPIT = ["/usr/lib/cockpit/cockpit-ws", "/usr/libexec/cockpit-ws"].find((file) => fs.existsSync(file));
const STATE = "/run/canopy-cockpit";

const freePort = () => new Promise((resolve) => {
  const server = net.createServer().listen(0, "127.0.0.1", () => {
    const { port } = server.address();
    server.close(() => resolve(port));
  });
});

exports.run = async ({ browser, check, axe, pool }) => {
  if (!COCKPIT) {
    console.log("none cockpit: cockpit-ws is not installed (apt-get install cockpit-ws cockpit-bridge)");
    return;
  }
  await check("cockpit: the pages show, links and forms work, and an action is done under its login", async () => {
    assert.ok(!fs.existsSync(STATE), `${STATE} is there: another one runs`);
    const repository = path.join(__dirname, "../..");
    const installed = spawnSync(path.join(repository, "scripts/install.sh"), ["install"], {
      encoding: "utf8", env: { ...process.env, BUILD, DESTDIR: `${WORK}/cockpit`, PREFIX: "/usr", SBINDIR: "/usr/sbin", NAMES: "cockpit" },
    });
    assert.strictEqual(installed.status, 0, installed.stderr);
    fs.mkdirSync(STATE, { mode: 0o700 });
    const port = await freePort();
    // As its unit does.
    const screen = spawn(path.join(BUILD, "canopy-web"), ["--no-token", "--state", STATE, "--listen", `unix:${STATE}/socket`,
      "--user-header", "X-Cockpit-User"], { stdio: "ignore" });
    const cockpit = spawn(COCKPIT, ["--no-tls", "--address", "127.0.0.1", "--port", String(port), "--local-session", "cockpit-bridge"], {
      stdio: "ignore", env: { ...process.env, XDG_DATA_HOME: `${WORK}/cockpit/usr/share`, HOME: WORK },
    });
    const context = await browser.newContext({ viewport: { width: 1100, height: 800 } });
    const page = await context.newPage();
    const complaints = [];
    page.on("pageerror", (error) => complaints.push(String(error)));
    page.on("console", (message) => { if (/Content.Security/.test(message.text())) complaints.push(message.text()); });
    try {
      const address = `http://127.0.0.1:${port}/cockpit/@localhost/canopy/index.html`;
      for (let tries = 0; ; tries += 1) {
        try {
          await page.goto(address);
          break;
        } catch (error) {
          if (tries > 40) throw error;
          await page.waitForTimeout(250);
        }
      }
      await page.getByRole("heading", { name: "Pools", exact: true }).waitFor({ timeout: 30000 });
      await page.getByRole("link", { name: pool }).click();
      await page.getByRole("heading", { name: /media/ }).first().waitFor();
      await page.screenshot({ path: `${SHOTS}/cockpit-pool.png`, fullPage: true });
      await axe(page);
      // A hostile name is text here, too.
      await page.getByRole("link", { name: "Files" }).first().click();
      await page.getByLabel("Path of a file").fill("films");
      await page.getByRole("button", { name: "Show" }).first().click();
      await page.getByText("<img src=x onerror=alert(1)>").waitFor();
      // An action with its plan and its yes.
      await page.getByRole("link", { name: "Actions" }).click();
      await page.getByRole("link", { name: "Check files" }).first().click();
      await page.getByRole("button", { name: "Show what it would do" }).click();
      await page.getByRole("button", { name: "Do it" }).click({ timeout: 30000 });
      await page.getByText(/It has ended: done/).waitFor({ timeout: 60000 });
      await page.screenshot({ path: `${SHOTS}/cockpit-action.png`, fullPage: true });
      assert.deepStrictEqual(complaints, []);
      assert.strictEqual(fs.statSync(`${STATE}/socket`).mode & 0o777, 0o600);
    } finally {
      await page.screenshot({ path: `${SHOTS}/cockpit-end.png`, fullPage: true }).catch(() => {});
      await context.close();
      for (const child of [cockpit, screen]) {
        const ends = child.exitCode === null && child.signalCode === null;
        child.kill();
        if (ends) await new Promise((resolve) => { child.once("exit", resolve); });
      }
      fs.rmSync(STATE, { recursive: true, force: true });
    }
  });
};
