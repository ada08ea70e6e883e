// Draws an engine's steps: time to the right, a line for each sequence. Knows steps and a canvas.

const LINE = 18, TOP = 46, NAMES = 56;

// steps: as `engine/state` gives them; the last `seconds` of them are shown.
export function drawTimeline(canvas, steps, seconds) {
  const ids = [...new Set(steps.flatMap((step) => [...step.rows, ...step.waiting].map((one) => one.sequence)))].sort((a, b) => a - b).slice(-40);
  const line = new Map(ids.map((id, i) => [id, TOP + i * LINE]));
  const width = canvas.parentElement.clientWidth, height = TOP + Math.max(1, ids.length) * LINE + 6;
  const scale = window.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.setProperty("height", `${height}px`);
  const colour = (name) => getComputedStyle(canvas).getPropertyValue(name).trim();
  const draw = canvas.getContext("2d");
  draw.scale(scale, scale);
  draw.font = `11px ${colour("--mono")}`;
  draw.textBaseline = "middle";
  const end = steps.at(-1)?.end_s ?? 0, x = (time) => NAMES + ((time - (end - seconds)) / seconds) * (width - NAMES);
  scaleOfTime(draw, x, end, seconds, height, colour);
  const counts = steps.map((step) => step.rows.reduce((sum, one) => sum + one.count, 0)), most = Math.max(1, ...counts);
  for (const [i, step] of steps.entries()) {
    const left = x(step.begin_s), size = Math.max(0.8, x(step.end_s) - left - 0.3);
    const high = (24 * counts[i]) / most;
    draw.fillStyle = colour(step.failed ? "--bad" : "--accent");
    draw.fillRect(left, 40 - high, size, high);
    for (const one of step.waiting) bar(draw, line.get(one.sequence), left, size, colour("--wait"), 4);
    for (const one of step.rows) {
      bar(draw, line.get(one.sequence), left, size, colour(one.generates ? "--token" : "--prompt"), 12);
      if (one.found) bar(draw, line.get(one.sequence), left - 2, 3, colour("--found"), 16);
    }
  }
  draw.fillStyle = colour("--dim");
  draw.fillText(`${most} rows`, 2, 22);
  for (const [id, y] of line) draw.fillText(String(id), 4, y + LINE / 2);
  canvas.setAttribute("aria-label", `${steps.length} steps of ${ids.length} sequences in the last ${seconds} seconds`);
}

function bar(draw, y, left, size, fill, height) {
  if (y === undefined) return;
  draw.fillStyle = fill;
  draw.fillRect(left, y + (LINE - height) / 2, size, height);
}

function scaleOfTime(draw, x, end, seconds, height, colour) {
  for (let back = 0; back <= seconds; back += 2) {
    const at = x(end - back);
    draw.fillStyle = colour("--line");
    draw.fillRect(at, 14, 1, height - 14);
    draw.fillStyle = colour("--dim");
    draw.fillText(back ? `−${back} s` : "", at - 14, 7);
  }
}
