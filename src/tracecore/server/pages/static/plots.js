// Step time and loss per rank. Replaces the server's drawings, which stay where this does not run.
"use strict";
(() => {
  const box = document.querySelector("[data-plots]");
  if (!box || typeof uPlot === "undefined") return;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // light-dark() is not understood by a canvas: let the browser resolve it.
  const colour = (name) => {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  const narrow = (value) => value == null ? "–" : Math.abs(value) >= 1000 ? value.toLocaleString("en", { maximumFractionDigits: 0 }) : String(+value.toPrecision(4));
  const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" }), hour = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
  const dates = (all) => all.map((at) => (all.length > 1 && all[1] - all[0] >= 86400 ? day : hour).format(at * 1000));
  let data = null, plots = [];

  const marks = (ink) => ({
    hooks: {
      drawClear: [(u) => {
        const { ctx } = u, { left, top, width, height } = u.bbox;
        ctx.save();
        ctx.beginPath(); ctx.rect(left, top, width, height); ctx.clip();
        ctx.fillStyle = ink.stall;
        for (const [from, to] of data.stalls) {
          const x = u.valToPos(from, "x", true);
          ctx.fillRect(x, top, Math.max(1, u.valToPos(to, "x", true) - x), height);
        }
        ctx.strokeStyle = ink.bad; ctx.lineWidth = devicePixelRatio;
        for (const one of data.incidents) {
          const x = u.valToPos(one.at, "x", true);
          ctx.beginPath(); ctx.moveTo(x, top); ctx.lineTo(x, top + height); ctx.stroke();
        }
        ctx.restore();
      }],
    },
  });

  const draw = () => {
    for (const one of plots) one.destroy();
    plots = [];
    const ink = { text: colour("--soft-ink"), line: colour("--line"), bad: colour("--bad-fill"), stall: colour("--warn-soft") };
    const own = ["--c0", "--c2", "--c3", "--c5", "--c1", "--c4", "--c6", "--strong-line"].map(colour);
    for (const part of box.querySelectorAll("[data-plot]")) {
      const lines = data.charts[part.dataset.plot];
      if (!lines || !lines.some((line) => line.some((value) => value != null))) continue;
      const body = part.querySelector(".plot-body");
      body.replaceChildren();
      const axis = { stroke: ink.text, grid: { stroke: ink.line, width: 1 }, ticks: { stroke: ink.line, width: 1 }, font: `12px ${css("--sans")}` };
      plots.push(new uPlot({
        width: body.clientWidth, height: 240, cursor: { sync: { key: "progress" } }, legend: { live: true },
        scales: { x: { time: true } },
        axes: [{ ...axis, values: (u, all) => dates(all) }, { ...axis, size: 64, values: (u, all) => all.map(narrow) }],
        series: [
          { label: "time", value: (u, at) => at == null ? "–" : `${day.format(at * 1000)} ${hour.format(at * 1000)}` },
          ...data.ranks.map((rank, n) => {
            const suspect = data.suspects.includes(rank);
            return { label: rank < 0 ? "job" : `rank ${rank}`, stroke: suspect ? ink.bad : own[n % own.length], width: suspect ? 2 : 1.25, spanGaps: false, points: { show: false }, value: (u, value) => narrow(value) };
          }),
        ],
        plugins: [marks(ink)],
      }, [data.times, ...lines], body));
    }
  };
  const resize = () => { for (const one of plots) one.setSize({ width: one.root.parentElement.clientWidth, height: 240 }); };

  fetch(box.dataset.plots, { headers: { Accept: "application/json" } })
    .then((answer) => answer.ok ? answer.json() : Promise.reject(answer.status))
    .then((found) => { data = found; if (data.times.length > 1) { draw(); addEventListener("resize", resize); document.addEventListener("themechange", draw); matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw); } })
    .catch(() => { /* the server's drawings stay */ });
})();
