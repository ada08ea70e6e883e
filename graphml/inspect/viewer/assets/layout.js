// Layered layout, top to bottom: ranks, order by medians, places by least squares under the wanted distances.

const GAP_X = 22;
const GAP_Y = 40;
const WIDE = 640; // rows up to this width are left as they are

// items: [{w, h}]; edges: [{from, to, fromDx, toDx}] by index. Gives centres, the polyline of each edge, and the size.
// Items are drawn centre under centre; an edge may leave and arrive beside the centre (fromDx, toDx).
function layered(items, edges) {
  const rank = balanced(items, ranks(items.length, edges), edges);
  const cells = items.map((item, at) => ({ rank: rank[at], w: item.w, h: item.h, up: [], down: [], x: 0, item: at }));
  const chains = edges.map((edge) => chain(edge, cells));
  const rows = [];
  for (const cell of cells) (rows[cell.rank] ??= []).push(cell);
  const filled = rows.filter(Boolean);
  order(filled);
  place(filled);
  let y = 0;
  for (const row of filled) {
    const height = Math.max(...row.map((cell) => cell.h));
    for (const cell of row) { cell.y = y + height / 2; cell.top = y; cell.bottom = y + height; }
    y += height + GAP_Y;
  }
  const left = cells.length ? Math.min(...cells.map((cell) => cell.x - cell.w / 2)) : 0;
  for (const cell of cells) cell.x -= left;
  const width = Math.max(0, ...cells.map((cell) => cell.x + cell.w / 2));
  return {
    width, height: Math.max(0, y - GAP_Y),
    centres: items.map((item, at) => ({ x: cells[at].x, y: cells[at].y })),
    rows: filled.map((row) => row.filter((cell) => cell.item !== undefined).map((cell) => cell.item)),
    paths: edges.map((edge, at) => points(edge, chains[at], cells)),
  };
}

// Longest path from the sources; then sources, and what is made of sources alone, move down to their readers.
// A cycle is cut at its first item.
function ranks(count, edges) {
  const down = Array.from({ length: count }, () => []);
  const waiting = new Array(count).fill(0);
  for (const { from, to } of edges) { down[from].push(to); waiting[to] += 1; }
  const rank = new Array(count).fill(0);
  const done = new Array(count).fill(false);
  const ready = [];
  for (let at = 0; at < count; at += 1) if (waiting[at] === 0) ready.push(at);
  let left = count;
  const sequence = [];
  let scan = 0;
  while (left > 0) {
    if (!ready.length) {
      while (done[scan]) scan += 1;
      ready.push(scan);
    }
    const at = ready.pop();
    if (done[at]) continue;
    done[at] = true;
    sequence.push(at);
    left -= 1;
    for (const next of down[at]) {
      if (done[next]) continue;
      rank[next] = Math.max(rank[next], rank[at] + 1);
      waiting[next] -= 1;
      if (waiting[next] === 0) ready.push(next);
    }
  }
  const up = Array.from({ length: count }, () => []);
  for (const { from, to } of edges) up[to].push(from);
  const loose = new Array(count).fill(false);
  for (const at of sequence) loose[at] = up[at].every((before) => loose[before]) && up[at].length < 2;
  for (const at of sequence.reverse()) {
    if (loose[at] && down[at].length) rank[at] = Math.max(rank[at], Math.min(...down[at].map((next) => rank[next])) - 1);
  }
  return rank;
}

// Ranks where no row is far wider than the one above it: sources of a wide row move up, as long as both gain.
function balanced(items, rank, edges) {
  const inner = new Set(edges.map((edge) => edge.to));
  const widths = [];
  items.forEach((item, at) => { widths[rank[at]] = (widths[rank[at]] || 0) + item.w + GAP_X; });
  for (let row = widths.length - 1; row > 0; row -= 1) {
    const sources = items.map((item, at) => at).filter((at) => rank[at] === row && !inner.has(at)).sort((a, b) => items[b].w - items[a].w);
    for (const at of sources) {
      const width = items[at].w + GAP_X;
      if (widths[row] < WIDE || widths[row - 1] + width > widths[row] - width) continue;
      rank[at] -= 1;
      widths[row] -= width;
      widths[row - 1] += width;
    }
  }
  return rank;
}

// The cells that an edge passes: one thin cell per rank between its ends.
function chain(edge, cells) {
  const [top, bottom] = cells[edge.from].rank <= cells[edge.to].rank ? [edge.from, edge.to] : [edge.to, edge.from];
  const passed = [];
  let above = cells[top];
  for (let rank = cells[top].rank + 1; rank < cells[bottom].rank; rank += 1) {
    const cell = { rank, w: 8, h: 1, up: [], down: [], x: 0 };
    link(above, cell);
    cells.push(cell);
    passed.push(cell);
    above = cell;
  }
  if (cells[top].rank !== cells[bottom].rank) link(above, cells[bottom]);
  return { passed, top, bottom };
}

function link(above, below) {
  const weight = above.item === undefined && below.item === undefined ? 6 : above.item === undefined || below.item === undefined ? 2 : 1;
  above.down.push({ cell: below, weight });
  below.up.push({ cell: above, weight });
}

function order(rows) {
  for (const row of rows) row.forEach((cell, at) => { cell.at = at; });
  for (let sweep = 0; sweep < 10; sweep += 1) {
    const downwards = sweep % 2 === 0;
    for (const row of downwards ? rows : [...rows].reverse()) {
      for (const cell of row) {
        const near = downwards ? cell.up : cell.down;
        cell.key = near.length ? near.reduce((sum, one) => sum + one.cell.at, 0) / near.length : cell.at;
      }
      row.sort((a, b) => a.key - b.key);
      row.forEach((cell, at) => { cell.at = at; });
    }
  }
}

function place(rows) {
  for (const row of rows) settle(row, row.map(() => 0), row.map(() => 1));
  for (let sweep = 0; sweep < 28; sweep += 1) {
    const downwards = sweep % 2 === 0;
    for (const row of downwards ? rows : [...rows].reverse()) {
      const wanted = [];
      const weights = [];
      for (const cell of row) {
        const near = sweep > 13 ? [...cell.up, ...cell.down] : downwards ? cell.up : cell.down;
        const weight = near.reduce((sum, one) => sum + one.weight, 0);
        wanted.push(weight ? near.reduce((sum, one) => sum + one.weight * one.cell.x, 0) / weight : cell.x);
        weights.push(Math.max(weight, 0.1));
      }
      settle(row, wanted, weights);
    }
  }
}

// The nearest places (least squares) to those wanted that keep order and distance: pools of cells that touch.
function settle(row, wanted, weights) {
  const pools = [];
  let offset = 0;
  row.forEach((cell, at) => {
    if (at) offset += (row[at - 1].w + cell.w) / 2 + (cell.item === undefined && row[at - 1].item === undefined ? 6 : GAP_X);
    cell.offset = offset;
    let pool = { sum: (wanted[at] - offset) * weights[at], weight: weights[at], from: at };
    while (pools.length && pools[pools.length - 1].sum / pools[pools.length - 1].weight > pool.sum / pool.weight) {
      const before = pools.pop();
      pool = { sum: before.sum + pool.sum, weight: before.weight + pool.weight, from: before.from };
    }
    pools.push(pool);
  });
  pools.forEach((pool, index) => {
    const end = index + 1 < pools.length ? pools[index + 1].from : row.length;
    for (let at = pool.from; at < end; at += 1) row[at].x = pool.sum / pool.weight + row[at].offset;
  });
}

function points(edge, { passed, top, bottom }, cells) {
  const [above, below] = [cells[top], cells[bottom]];
  const flip = top !== edge.from;
  const line = [
    { x: above.x + ((flip ? edge.toDx : edge.fromDx) || 0), y: above.y + above.h / 2 },
    ...passed.flatMap((cell) => [{ x: cell.x, y: cell.top }, { x: cell.x, y: cell.bottom }]),
    { x: below.x + ((flip ? edge.fromDx : edge.toDx) || 0), y: below.y - below.h / 2 },
  ];
  return flip ? line.reverse() : line;
}

// A smooth line through points; it leaves and arrives vertically.
function curve(line) {
  let path = `M${round(line[0].x)} ${round(line[0].y)}`;
  for (let at = 1; at < line.length; at += 1) {
    const [a, b] = [line[at - 1], line[at]];
    if (Math.abs(a.x - b.x) < 0.5) path += `L${round(b.x)} ${round(b.y)}`;
    else {
      const middle = round((a.y + b.y) / 2);
      path += `C${round(a.x)} ${middle} ${round(b.x)} ${middle} ${round(b.x)} ${round(b.y)}`;
    }
  }
  return path;
}

function round(value) {
  return Math.round(value * 10) / 10;
}
