// Shows the pages of canopy-web within Cockpit. They come over Cockpit's channel from a socket that only root may connect to; whoever
// has administrative access in Cockpit is let in under their name. Links and forms are followed here, and nothing of a page runs.
"use strict";
(() => {
  const SOCKET = "/run/canopy-cockpit/socket";
  const client = cockpit.http({ unix: SOCKET, superuser: "require" });
  let cookie = "";
  let user = "";
  let at = "/";
  // Only the last answer that was asked for counts.
  let turn = 0;

  // Returns the document and its address, and follows redirects.
  async function load(address, form) {
    for (let hop = 0; hop < 5; hop += 1) {
      let status = 200;
      let headers = {};
      const request = { method: form === undefined ? "GET" : "POST", path: address, body: form ?? "", headers: { Host: "localhost", "X-Cockpit-User": user } };
      if (cookie) request.headers.Cookie = cookie;
      if (form !== undefined) request.headers["Content-Type"] = "application/x-www-form-urlencoded";
      const exchange = client.request(request);
      exchange.response((found, given) => { status = found; headers = given || {}; });
      let body;
      try {
        body = await exchange;
      } catch (error) {
        // A page that says why something is refused is a page.
        if (!error.status || !error.message) throw error;
        body = await refused(exchange, error);
      }
      const header = (name) => Object.entries(headers).find(([key]) => key.toLowerCase() === name)?.[1];
      const given = header("set-cookie");
      if (given) {
        cookie = given.split(";")[0];
        // A session has begun: the page that was asked for is behind it.
        if (form === undefined) continue;
      }
      const next = status >= 300 && status < 400 ? header("location") : undefined;
      if (!next) return { page: new DOMParser().parseFromString(body, "text/html"), address };
      [address, form] = [next, undefined];
    }
    throw new Error("canopy-web leads in circles");
  }

  const refused = (exchange, error) => exchange.then(() => "", (_, body) => body || `<main><p class="notice problem">${error.status}</p></main>`);

  const tell = (text) => {
    const main = document.querySelector("main");
    const line = document.createElement("p");
    line.className = "notice problem";
    line.setAttribute("role", "alert");
    line.textContent = text;
    main.replaceChildren(line);
  };

  // What is shown: the menu and the content, without what leads out of Cockpit.
  function show(page) {
    const parts = [...page.querySelectorAll("header, main, #said")];
    for (const part of parts) part.querySelectorAll("script, style, link, meta, form[action='/leave'], img").forEach((node) => node.remove());
    document.body.replaceChildren(...parts.map((part) => document.importNode(part, true)));
  }

  async function go(address, form) {
    const mine = (turn += 1);
    try {
      const { page, address: found } = await load(address, form);
      if (mine !== turn) return;
      at = found;
      cockpit.location.replace([], at === "/" ? {} : { page: at });
      show(page);
      scrollTo(0, 0);
    } catch (error) {
      if (mine === turn) tell(cockpit.message(error));
    }
  }

  // A page that is kept up to date is looked at again, unless somebody fills in a form of it.
  setInterval(async () => {
    const main = document.querySelector("main[data-live]");
    if (!main || cockpit.hidden || main.querySelector("form.act") || main.contains(document.activeElement)) return;
    const mine = turn;
    const { page } = await load(at).catch(() => ({}));
    const new_main = page?.querySelector("main");
    if (mine === turn && new_main && new_main.innerHTML !== main.innerHTML) show(page);
  }, 2000);

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href]");
    if (!link || event.ctrlKey || event.metaKey || event.button !== 0) return;
    event.preventDefault();
    const target = link.getAttribute("href");
    if (target.startsWith("#")) document.querySelector(target)?.focus();
    else if (target.startsWith("/")) go(target);
  });
  document.addEventListener("submit", (event) => {
    event.preventDefault();
    const form = event.target;
    const fields = new URLSearchParams(new FormData(form)).toString();
    const action = form.getAttribute("action") || at;
    if (form.method === "post") go(action, fields);
    else go(`${action}?${fields}`);
  });

  (async () => {
    try {
      user = (await cockpit.user()).name;
      // It serves until it is stopped, so that what was begun goes on when the page is closed.
      await cockpit.spawn(["systemctl", "start", "canopy-cockpit"], { superuser: "require", err: "message" });
    } catch (error) {
      if (error.problem === "access-denied" || error.problem === "authentication-failed") {
        tell(`Canopy needs administrative access here: ${cockpit.message(error)}`);
        return;
      }
      // Without systemd, somebody else may have started it.
    }
    go(cockpit.location.options.page || "/");
  })();
})();
