// Small helpers. Every page reads without this file.
"use strict";
(() => {
  const root = document.documentElement;

  // Theme: the system's until somebody chooses.
  const toggle = document.querySelector("[data-theme-toggle]");
  if (toggle) {
    toggle.hidden = false;
    toggle.addEventListener("click", () => {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      try { localStorage.setItem("theme", root.dataset.theme); } catch { /* not kept */ }
      document.dispatchEvent(new Event("themechange"));
    });
  }
  for (const one of document.querySelectorAll("[data-needs-js]")) one.hidden = false;

  // Times: "3 min ago", kept current; on hover the exact time in the reader's zone.
  const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  const relative = (at) => {
    const away = Math.abs(Date.now() - at) / 1000, past = at <= Date.now();
    if (away < 45) return past ? "just now" : "in a moment";
    const [step, unit] = away >= 172800 ? [86400, "d"] : away >= 5400 ? [3600, "h"] : [60, "min"];
    const words = `${Math.max(1, Math.round(away / step)).toLocaleString("en")} ${unit}`;
    return past ? `${words} ago` : `in ${words}`;
  };
  const refresh = (within) => {
    for (const one of within.querySelectorAll("time[datetime]")) {
      const at = Date.parse(one.dateTime);
      if (Number.isNaN(at)) continue;
      if (!one.dataset.said) { one.dataset.said = "1"; one.title = `${local.format(at)} · ${one.title || one.textContent}`; }
      if (!("exact" in one.dataset)) one.textContent = relative(at);
    }
  };
  refresh(document);
  setInterval(() => refresh(document), 30000);

  // "/" goes to the search box.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    const box = document.getElementById("q") || document.getElementById("find");
    if (box) { event.preventDefault(); box.focus(); box.select(); }
  });

  // What changed on the server: one stream, turned into events that parts of the page listen for.
  const sign = document.querySelector("[data-live]");
  const listening = document.querySelector("[hx-trigger*='tracecore:']");
  if (listening && "EventSource" in window) {
    const waiting = new Set();
    let timer = 0, last = 0;
    // The first change is shown at once, many changes together at most every three seconds.
    const say = (name) => {
      waiting.add(name);
      if (!timer) timer = setTimeout(() => {
        timer = 0; last = Date.now();
        for (const one of waiting) document.body.dispatchEvent(new CustomEvent(one));
        waiting.clear();
      }, Math.max(200, last + 3000 - Date.now()));
    };
    const live = (on, words) => { if (sign) { sign.hidden = false; sign.classList.toggle("on", on); sign.textContent = words; } };
    const shown = document.querySelector("[data-incident]");
    let stream = null;
    const open = () => {
      stream = new EventSource("/api/v1/events");
      stream.onopen = () => live(true, "live");
      stream.onerror = () => live(false, "reconnecting");
      for (const kind of ["incident", "node", "job", "diagnosis", "silence", "reload"]) {
        stream.addEventListener(kind, (event) => {
          let name = "";
          try { name = JSON.parse(event.data).name || ""; } catch { /* no name */ }
          say(kind === "reload" ? "tracecore:incident" : `tracecore:${kind}`);
          if (shown && (name === shown.dataset.incident || kind === "reload")) say("tracecore:this-incident");
        });
      }
    };
    open();
    addEventListener("pagehide", () => stream && stream.close());
    addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  }

  // New rows are marked for a moment; text that somebody is writing is not thrown away.
  let before = new Set();
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    const target = event.detail.target;
    before = new Set([...target.querySelectorAll("[data-key]")].map((one) => one.dataset.key));
    const draft = target.querySelector("textarea");
    if (draft && (draft.value || document.activeElement === draft)) event.detail.shouldSwap = false;
  });
  document.body.addEventListener("htmx:afterSwap", (event) => {
    const target = event.detail.target;
    refresh(target);
    for (const one of target.querySelectorAll("[data-needs-js]")) one.hidden = false;
    if (before.size) for (const one of target.querySelectorAll("[data-key]")) if (!before.has(one.dataset.key)) one.classList.add("fresh");
    zoomable();
  });

  // Drag over a timeline to zoom in.
  const zoomable = () => {
    for (const svg of document.querySelectorAll("#timeline svg[data-from]")) {
      if (svg.dataset.ready) continue;
      svg.dataset.ready = "1";
      const left = +svg.dataset.left, right = +svg.dataset.right;
      const from = BigInt(svg.dataset.from), to = BigInt(svg.dataset.to);
      const at = (event) => {
        const box = svg.getBoundingClientRect();
        const x = (event.clientX - box.left) / box.width * 900;
        return Math.min(1, Math.max(0, (x - left) / (right - left)));
      };
      let start = null, mark = null;
      svg.addEventListener("pointerdown", (event) => {
        if (event.button || event.pointerType === "touch") return;
        start = at(event);
        mark = document.createElementNS("http://www.w3.org/2000/svg", "rect");
        mark.setAttribute("class", "selection"); mark.setAttribute("y", "18"); mark.setAttribute("height", "100%");
        svg.append(mark); svg.setPointerCapture(event.pointerId); event.preventDefault();
      });
      svg.addEventListener("pointermove", (event) => {
        if (start === null) return;
        const now = at(event), low = Math.min(start, now), high = Math.max(start, now);
        mark.setAttribute("x", left + low * (right - left)); mark.setAttribute("width", (high - low) * (right - left));
      });
      svg.addEventListener("pointerup", (event) => {
        if (start === null) return;
        const now = at(event), low = Math.min(start, now), high = Math.max(start, now);
        start = null; mark.remove();
        if (high - low < 0.01) return;
        const place = (share) => from + (to - from) * BigInt(Math.round(share * 1e6)) / 1000000n;
        const link = document.querySelector("#timeline .zoom a[aria-current]");
        const address = new URL(link.getAttribute("hx-get"), location.href);
        address.searchParams.set("start", place(low)); address.searchParams.set("end", place(high));
        htmx.ajax("GET", address.pathname + address.search, { target: "#timeline", swap: "innerHTML" });
      });
    }
  };
  zoomable();

  // Upload with progress.
  const form = document.querySelector("[data-upload]");
  if (form) {
    const area = form.querySelector("[data-drop]"), file = form.querySelector("input[type=file]");
    const sending = form.querySelector("[data-sending]"), said = form.querySelector("[data-said]"), bar = form.querySelector("progress");
    for (const kind of ["dragover", "dragenter"]) area.addEventListener(kind, (event) => { event.preventDefault(); area.classList.add("over"); });
    for (const kind of ["dragleave", "drop"]) area.addEventListener(kind, () => area.classList.remove("over"));
    area.addEventListener("drop", (event) => { event.preventDefault(); if (event.dataTransfer.files.length) file.files = event.dataTransfer.files; });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const request = new XMLHttpRequest();
      const button = form.querySelector("button[type=submit]");
      button.disabled = true; sending.hidden = false; said.textContent = "Sending";
      request.upload.onprogress = (step) => {
        if (!step.lengthComputable) return;
        bar.value = 100 * step.loaded / step.total;
        said.textContent = `${Math.round(bar.value)} % of ${(step.total / 1048576).toFixed(1)} MiB sent`;
      };
      const failed = (words) => { said.textContent = words; button.disabled = false; bar.value = 0; };
      request.onload = () => {
        if (request.status < 400) { location.href = request.responseURL; return; }
        let words = `The server refused it (${request.status}).`;
        try { words = JSON.parse(request.responseText).detail || words; } catch { /* not JSON */ }
        failed(words);
      };
      request.onerror = () => failed("The connection broke. Nothing was kept; try again.");
      request.open("POST", form.getAttribute("action"));
      request.setRequestHeader("Accept", "application/json");
      request.send(new FormData(form));
    });
  }
})();
