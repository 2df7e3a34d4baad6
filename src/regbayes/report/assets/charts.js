// Charts. Bars are elements, so that they flow and can be read out; the rest is SVG or a canvas with a description.

const SERIES = ['warm', 'accent', 'good', 'chart-3', 'chart-4', 'chart-5', 'chart-6'];
const MANY_BARS = 24;
const MANY_ROWS = 45;

// A bar from zero on a line that has zero in its middle.
function signedTrack(value, limit) {
  const width = (50 * Math.abs(value)) / limit;
  const style = { left: (value < 0 ? 50 - width : 50) + '%', width: Math.max(0.4, width) + '%' };
  const bar = h('i', { class: value < 0 ? 'minus' : 'plus', style });
  return h('span', { class: 'track', 'aria-hidden': true }, h('u', { style: { left: '50%' } }), bar);
}

// items: [{label, value, low, high, shown}]; deviations become whiskers. Bars start at zero; `shown` replaces the figure.
function bars(items, { limits = null, signs = false, few = MANY_BARS } = {}) {
  const known = items.filter((item) => item.value !== null);
  const plain = uniform(known.map((item) => item.value));
  const figure = signs ? withSign(plain) : plain;
  const ends = known.flatMap((item) => [item.value, item.low ?? item.value, item.high ?? item.value]);
  const [low, high] = limits ?? [Math.min(0, ...ends), Math.max(0, ...ends)];
  const place = (value) => (100 * (Math.min(high, Math.max(low, value)) - low)) / (high - low || 1);
  const span = (from, to, least) => ({
    left: place(from) + '%',
    width: Math.max(least, place(to) - place(from)) + '%',
  });
  const marks = ({ value, low: from, high: to }) => [
    h('i', { class: value < 0 ? 'minus' : 'plus', style: span(Math.min(0, value), Math.max(0, value), 0.4) }),
    low < 0 && h('u', { style: { left: place(0) + '%' } }),
    from !== undefined && h('b', { style: span(from, to, 0) }),
  ];
  const line = (item) => [
    h('span', { class: 'label', title: item.label }, item.label),
    h('span', { class: 'track' }, item.value !== null && marks(item)),
    h('span', { class: 'figure' }, item.value === null ? '–' : (item.shown ?? figure(item.value))),
  ];
  const box = h('div', { class: 'bars' }, items.slice(0, few).map(line));
  if (items.length <= few) return box;
  const rest = () => box.append(...items.slice(few).flatMap(line));
  return h('div', null, box, moreButton('show all ' + items.length, rest));
}

// --- pictures

function paint(canvas, height, width, colorAt) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext('2d');
  const image = context.createImageData(width, height);
  for (let i = 0; i < height * width; i++) image.data.set([...colorAt(i), 255], 4 * i);
  context.putImageData(image, 0, 0);
}

function loadingPicture(packed, bytes, place, label) {
  const [, height, width] = packed.shape;
  const canvas = h('canvas', { class: 'picture', role: 'img', 'aria-label': label });
  const draw = () => {
    const palette = diverging();
    paint(canvas, height, width, (i) => palette(bytes[place * height * width + i] / 127));
  };
  draw();
  return drawn(canvas, draw);
}

function thumbnail(packed, bytes, place, label) {
  const [, height, width, channels = 1] = packed.shape;
  const canvas = h('canvas', { class: 'picture', role: 'img', 'aria-label': label });
  const start = place * height * width * channels;
  paint(canvas, height, width, (i) => [0, 1, 2].map((c) => bytes[start + channels * i + (channels === 3 ? c : 0)]));
  return canvas;
}

// --- lines and points

// A chart that fills its box and is drawn again when the box changes. draw(width) returns [height, children].
function chart(label, draw) {
  const svg = s('svg', { class: 'chart', role: 'img', 'aria-label': label });
  let last = 0;
  const refresh = () => {
    last = Math.max(240, svg.parentNode?.clientWidth || 0) || 480;
    const [height, children] = draw(last);
    svg.setAttribute('viewBox', `0 0 ${last} ${height}`);
    svg.replaceChildren(...children.flat(Infinity).filter(Boolean));
  };
  requestAnimationFrame(refresh);
  new ResizeObserver(() => {
    if (svg.parentNode && Math.abs(svg.parentNode.clientWidth - last) > 4) refresh();
  }).observe(svg);
  return drawn(svg, refresh);
}

function ticks(low, high, count) {
  const span = high - low || 1;
  const power = 10 ** Math.floor(Math.log10(span / count));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= (span / count) * (1 - 1e-9));
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => (first + i) * step + 0);
}

function segment(x1, y1, x2, y2, attributes) {
  return s('line', { x1, y1, x2, y2, ...attributes });
}

const DASHED = { stroke: 'var(--warm)', 'stroke-width': 1.5, 'stroke-dasharray': '4 3' };

// Axes with round numbers; returns the scales and what to draw.
function axes(width, height, [x0, x1], [y0, y1], { xLabel, yLabel = null, whole = false }) {
  const box = { left: 54, right: width - 10, top: 12, bottom: height - 42 };
  const x = (value) => box.left + ((box.right - box.left) * (value - x0)) / (x1 - x0 || 1);
  const y = (value) => box.bottom - ((box.bottom - box.top) * (value - y0)) / (y1 - y0 || 1);
  const label = (at, down, words, anchor, more) => s('text', { x: at, y: down, 'text-anchor': anchor, ...more }, words);
  const across = ticks(x0, x1, Math.max(2, Math.min(8, Math.floor(width / 90))));
  const middle = (box.top + box.bottom) / 2;
  const lines = [
    ticks(y0, y1, 5).map((value) => [
      segment(box.left, y(value), box.right, y(value), { class: 'axis' }),
      label(box.left - 8, y(value) + 4, text(value), 'end'),
    ]),
    across
      .filter((value) => !whole || Number.isInteger(value))
      .map((value) => label(x(value), box.bottom + 18, text(value), 'middle')),
    label((box.left + box.right) / 2, height - 4, xLabel, 'middle'),
    yLabel && label(12, middle, yLabel, 'middle', { transform: `rotate(-90 12 ${middle})` }),
  ];
  return { x, y, box, lines };
}

function histogram(counts, [low, high], mean, label) {
  const at = (i) => low + ((high - low) * i) / counts.length;
  return chart(label, (width) => {
    const height = 180;
    const top = Math.max(...counts, 1);
    const inner = { left: 4, right: width - 4, top: 16, bottom: height - 22 };
    const step = (inner.right - inner.left) / counts.length;
    const middle = inner.left + ((inner.right - inner.left) * (mean - low)) / (high - low);
    const bar = (count, i) => {
      const tall = ((inner.bottom - inner.top) * count) / top;
      const box = {
        x: inner.left + i * step + 0.5,
        y: inner.bottom - tall,
        width: Math.max(1, step - 1),
        height: tall,
      };
      const words = `${text(at(i))} to ${text(at(i + 1))}: ${plural(count, 'row')}`;
      return s('rect', { class: 'fill', ...box }, s('title', null, words));
    };
    const named = Math.min(inner.right - 40, Math.max(inner.left + 40, middle));
    const drawnParts = [
      counts.map(bar),
      segment(inner.left, inner.bottom, inner.right, inner.bottom, { class: 'axis' }),
      segment(middle, inner.top - 2, middle, inner.bottom, DASHED),
      s('text', { x: named, y: 10, 'text-anchor': 'middle' }, 'mean ' + uniform([low, high])(mean)),
      s('text', { x: inner.left, y: height - 5 }, text(low)),
      s('text', { x: inner.right, y: height - 5, 'text-anchor': 'end' }, text(high)),
    ];
    return [height, drawnParts];
  });
}

// Predicted against observed numbers, with the line on which both are equal.
function scatter(observed, predicted, label) {
  const both = [...observed, ...predicted];
  const [low, high] = [Math.min(...both), Math.max(...both)];
  const room = 0.04 * (high - low || 1);
  const range = [low - room, high + room];
  return chart(label, (width) => {
    const height = Math.min(width, 520) * 0.8;
    const { x, y, lines } = axes(width, height, range, range, { xLabel: 'observed', yLabel: 'predicted' });
    const diagonal = segment(x(range[0]), y(range[0]), x(range[1]), y(range[1]), {
      class: 'zero',
      'stroke-dasharray': '5 4',
    });
    const point = (value, i) => {
      const words = `observed ${text(value, 4)}, predicted ${text(predicted[i], 4)}`;
      return s('circle', { class: 'point', cx: x(value), cy: y(predicted[i]), r: 3 }, s('title', null, words));
    };
    return [height, [lines, diagonal, observed.map(point)]];
  });
}

// A map of numbers from -limit to limit, with names beside it where they fit and a line below that reads a cell.
// Columns may have limits of their own.
function numberMap(values, rowNames, columnNames, { limit, limits, label, rowNoun, columnNoun }) {
  const canvas = h('canvas', { role: 'img', 'aria-label': label });
  const readout = h('p', { class: 'readout', 'aria-hidden': true }, 'point at a cell to read it');
  const [lines, columns] = [rowNames.length, columnNames.length];
  const named = lines <= MANY_ROWS;
  const rowHeight = named ? 1.35 : Math.min(0.6, 30 / lines);
  const few = columns <= 8; // then there is room for their names
  const maxWidth = Math.max(12, (few ? 7 : 3.2) * columns) + 'rem';
  const share = (row, column) => (values[row][column] ?? 0) / ((limits ? limits[column] : limit) || 1);
  const draw = () => {
    const palette = diverging();
    paint(canvas, lines, columns, (i) => palette(share(Math.floor(i / columns), i % columns)));
  };
  draw();
  drawn(canvas, draw);
  const tell = (event) => {
    const frame = canvas.getBoundingClientRect();
    const place = (at, size, count) => Math.min(count - 1, Math.max(0, Math.floor((at / size) * count)));
    const row = place(event.clientY - frame.top, frame.height, lines);
    const column = place(event.clientX - frame.left, frame.width, columns);
    const value = withSign(text)(values[row][column]);
    readout.textContent = `${rowNoun} ${rowNames[row]}, ${columnNoun} ${columnNames[column]}: ${value}`;
  };
  for (const kind of ['pointermove', 'pointerdown']) canvas.addEventListener(kind, tell);
  const names = (some) => some.map((name) => h('span', { title: name }, name));
  const long = columnNames.some((name) => String(name).length > 4);
  const rowStyle = { gridAutoRows: rowHeight + 'rem', lineHeight: rowHeight + 'rem' };
  const heads = { class: long ? 'heads long' : 'heads', 'aria-hidden': true, style: { maxWidth } };
  const map = h(
    'div',
    { class: 'map' },
    named ? h('div', { class: 'rows', style: rowStyle }, names(rowNames)) : h('span'),
    h('div', { style: { height: rowHeight * lines + 'rem', maxWidth } }, canvas),
    (few || (columns <= 24 && !long)) && h('div', heads, names(columnNames)),
  );
  return h('div', null, map, readout);
}
