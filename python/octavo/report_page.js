// The pointer's values. Without it the page shows the same curves.
(() => {
  const tip = document.getElementById("tip");
  const data = JSON.parse(document.getElementById("data").textContent);
  const show = (event, text) => {
    tip.textContent = text;
    tip.style.opacity = 1;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 8)) + "px";
  };
  const hide = (svg) => {
    tip.style.opacity = 0;
    const cursor = svg.querySelector(".cursor");
    if (cursor) { cursor.setAttribute("x1", -9); cursor.setAttribute("x2", -9); }
  };
  const place = (svg, event) => {
    const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
    return [(event.clientX - box.left) / box.width * view.width,
            (event.clientY - box.top) / box.height * view.height];
  };
  const digits = (value) => Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : value.toPrecision(4);
  for (const svg of document.querySelectorAll("svg.chart")) {
    const series = data.charts[svg.id] || [], { left, right } = data.margins, width = svg.viewBox.baseVal.width;
    const x0 = +svg.dataset.x0, x1 = +svg.dataset.x1;
    svg.addEventListener("pointermove", (event) => {
      const x = x0 + (place(svg, event)[0] - left) / (width - left - right) * (x1 - x0);
      const lines = [];
      let near = null;
      for (const { label, points } of series) {
        let best = null;
        for (const point of points) if (!best || Math.abs(point[0] - x) < Math.abs(best[0] - x)) best = point;
        if (!best) continue;
        if (near === null || Math.abs(best[0] - x) < Math.abs(near - x)) near = best[0];
        lines.push(digits(best[1]).padStart(9) + "  " + label);
      }
      if (near === null) return;
      const at = left + (near - x0) / (x1 - x0) * (width - left - right);
      const cursor = svg.querySelector(".cursor");
      cursor.setAttribute("x1", at); cursor.setAttribute("x2", at);
      show(event, "step " + near.toLocaleString("en") + "\n" + lines.join("\n"));
    });
    svg.addEventListener("pointerleave", () => hide(svg));
  }
  for (const svg of document.querySelectorAll("svg.heat")) {
    const heat = data.heats[svg.id], set = svg.dataset;
    svg.addEventListener("pointermove", (event) => {
      const [x, y] = place(svg, event);
      const column = Math.floor((x - set.left) / set.cw), row = Math.floor((y - set.top) / set.ch);
      const rows = data.rows[heat.rows], value = (heat.values[row] || [])[column];
      if (column < 0 || row < 0 || value === undefined || value === null) return hide(svg);
      show(event, rows[row] + "\nstep " + heat.columns[column].toLocaleString("en") + ": " + digits(value) + heat.unit);
    });
    svg.addEventListener("pointerleave", () => hide(svg));
  }
  document.documentElement.dataset.ready = "yes";
})();
