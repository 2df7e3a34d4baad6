// Charts. Bars are elements, so that they flow and can be read out; the rest is SVG or a canvas with a description.

const SERIES = ['warm', 'accent', 'good', 'chart-3', 'chart-4', 'chart-5', 'chart-6'];
const MANY_BARS = 24;
const MANY_ROWS = 45;

// items: [{label, value, low, high, note, shown}]; deviations become whiskers. Bars start at zero; `shown` stands for the figure.
function bars(items, { limits = null, signs = false, few = MANY_BARS } = {}) {
  const shown = items.filter((item) => item.value !== null);
  const plain = uniform(shown.map((item) => item.value));
  const figure = signs ? withSign(plain) : plain;
  const ends = shown.flatMap((item) => [item.value, item.low ?? item.value, item.high ?? item.value]);
  const low = limits ? limits[0] : Math.min(0, ...ends);
  const high = limits ? limits[1] : Math.max(0, ...ends);
  const width = high - low || 1;
  const place = (value) => (100 * (Math.min(high, Math.max(low, value)) - low)) / width;
  const line = (item) => {
    const missing = item.value === null;
    const [a, b] = missing ? [0, 0] : [place(Math.min(0, item.value)), place(Math.max(0, item.value))];
    const track = h(
      'span',
      { class: 'track' },
      !missing &&
        h('i', {
          class: item.value < 0 ? 'minus' : 'plus',
          style: { left: a + '%', width: Math.max(0.4, b - a) + '%' },
        }),
      low < 0 && h('u', { style: { left: place(0) + '%' } }),
      !missing &&
        item.low !== undefined &&
        h('b', { style: { left: place(item.low) + '%', width: place(item.high) - place(item.low) + '%' } }),
    );
    return [
      h('span', { class: 'label', title: item.label }, item.label),
      track,
      h('span', { class: 'figure' }, missing ? '–' : (item.shown ?? figure(item.value)), item.note),
    ];
  };
  const box = h('div', { class: 'bars' }, items.slice(0, few).map(line));
  if (items.length <= few) return box;
  const more = h(
    'button',
    {
      type: 'button',
      class: 'more',
      click: () => {
        box.append(...items.slice(few).flatMap(line));
        more.remove();
      },
    },
    'show all ' + items.length,
  );
  return h('div', null, box, more);
}

function paint(canvas, height, width, colourAt) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext('2d');
  const image = context.createImageData(width, height);
  for (let i = 0; i < height * width; i++) {
    const [red, green, blue] = colourAt(i);
    image.data.set([red, green, blue, 255], 4 * i);
  }
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

// A chart that fills its box and is drawn again when the box changes. draw(width) returns [height, children].
function chart(label, draw) {
  const svg = s('svg', { class: 'chart', role: 'img', 'aria-label': label });
  let last = 0;
  const refresh = () => {
    const width = Math.max(240, svg.parentNode ? svg.parentNode.clientWidth || 0 : 0) || 480;
    last = width;
    const [height, children] = draw(width);
    svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    svg.replaceChildren(...children.flat(Infinity).filter(Boolean));
  };
  requestAnimationFrame(refresh);
  new ResizeObserver((entries) => {
    if (svg.parentNode && Math.abs(svg.parentNode.clientWidth - last) > 4) refresh();
  }).observe(svg);
  return drawn(svg, refresh);
}

function ticks(low, high, count) {
  const span = high - low || 1;
  const raw = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= raw * (1 - 1e-9));
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * span; i++) found.push(i * step + 0);
  return found;
}

// Axes with round numbers; returns the scales and what to draw.
function axes(width, height, [x0, x1], [y0, y1], { xLabel, yLabel, whole = false }) {
  const box = { left: 54, right: width - 10, top: 12, bottom: height - 42 };
  const x = (value) => box.left + ((box.right - box.left) * (value - x0)) / (x1 - x0 || 1);
  const y = (value) => box.bottom - ((box.bottom - box.top) * (value - y0)) / (y1 - y0 || 1);
  const lines = [
    ...ticks(y0, y1, 5).map((value) => [
      s('line', { class: 'axis', x1: box.left, x2: box.right, y1: y(value), y2: y(value) }),
      s('text', { x: box.left - 8, y: y(value) + 4, 'text-anchor': 'end' }, text(value)),
    ]),
    ...ticks(x0, x1, Math.max(2, Math.min(8, Math.floor(width / 90))))
      .filter((value) => !whole || Number.isInteger(value))
      .map((value) => s('text', { x: x(value), y: box.bottom + 18, 'text-anchor': 'middle' }, text(value))),
    s('text', { x: (box.left + box.right) / 2, y: height - 4, 'text-anchor': 'middle' }, xLabel),
    yLabel &&
      s(
        'text',
        {
          x: 12,
          y: (box.top + box.bottom) / 2,
          'text-anchor': 'middle',
          transform: `rotate(-90 12 ${(box.top + box.bottom) / 2})`,
        },
        yLabel,
      ),
  ];
  return { x, y, box, lines };
}

function histogram(counts, [low, high], mean, label) {
  return chart(label, (width) => {
    const height = 180;
    const top = Math.max(...counts, 1);
    const inner = { left: 4, right: width - 4, top: 16, bottom: height - 22 };
    const step = (inner.right - inner.left) / counts.length;
    const x = (value) => inner.left + ((inner.right - inner.left) * (value - low)) / (high - low);
    return [
      height,
      [
        counts.map((count, i) => {
          const tall = ((inner.bottom - inner.top) * count) / top;
          return s(
            'rect',
            {
              x: inner.left + i * step + 0.5,
              y: inner.bottom - tall,
              width: Math.max(1, step - 1),
              height: tall,
              rx: 1.5,
              fill: 'var(--accent)',
              opacity: 0.75,
            },
            s(
              'title',
              null,
              `${text(low + ((high - low) * i) / counts.length)} to ${text(low + ((high - low) * (i + 1)) / counts.length)}: ${plural(count, 'row')}`,
            ),
          );
        }),
        s('line', { class: 'axis', x1: inner.left, x2: inner.right, y1: inner.bottom, y2: inner.bottom }),
        s('line', {
          x1: x(mean),
          x2: x(mean),
          y1: inner.top - 2,
          y2: inner.bottom,
          stroke: 'var(--warm)',
          'stroke-width': 1.5,
          'stroke-dasharray': '4 3',
        }),
        s(
          'text',
          { x: Math.min(inner.right - 40, Math.max(inner.left + 40, x(mean))), y: 10, 'text-anchor': 'middle' },
          'mean ' + uniform([low, high])(mean),
        ),
        s('text', { x: inner.left, y: height - 5 }, text(low)),
        s('text', { x: inner.right, y: height - 5, 'text-anchor': 'end' }, text(high)),
      ],
    ];
  });
}

// One bar for each feature that there could be, the most used first.
function useChart(use, inUse, noun, label) {
  const order = use.map((_, i) => i).sort((a, b) => use[b] - use[a] || a - b);
  const top = Math.max(...use, 1e-12);
  const count = inUse.filter(Boolean).length;
  return chart(label, (width) => {
    const height = 190;
    const { x, y, box, lines } = axes(width, height, [0, use.length], [0, top], {
      xLabel: noun + 's, the most used first',
      yLabel: null,
      whole: true,
    });
    const step = (box.right - box.left) / use.length;
    const gap = step > 4 ? 1 : 0;
    return [
      height,
      [
        lines,
        order.map((k, i) =>
          s(
            'rect',
            {
              x: x(i) + gap / 2,
              width: Math.max(0.5, step - gap),
              y: y(use[k]),
              height: Math.max(1, box.bottom - y(use[k])),
              fill: inUse[k] ? 'var(--accent)' : 'var(--chart-6)',
              opacity: inUse[k] ? 0.85 : 0.45,
            },
            s('title', null, `feature ${k}: ${text(use[k])}`),
          ),
        ),
        count < use.length &&
          order.slice(0, count).every((k) => inUse[k]) &&
          s('line', {
            x1: x(count),
            x2: x(count),
            y1: box.top,
            y2: box.bottom,
            stroke: 'var(--warm)',
            'stroke-width': 1.5,
            'stroke-dasharray': '4 3',
          }),
      ],
    ];
  });
}

function scatter(observed, predicted, label) {
  return chart(label, (width) => {
    const side = Math.min(width, 520);
    const both = [...observed, ...predicted];
    const [low, high] = [Math.min(...both), Math.max(...both)];
    const room = 0.04 * (high - low || 1);
    const range = [low - room, high + room];
    const { x, y, lines } = axes(width, side * 0.8, range, range, { xLabel: 'observed', yLabel: 'predicted' });
    return [
      side * 0.8,
      [
        lines,
        s('line', {
          class: 'zero',
          x1: x(range[0]),
          y1: y(range[0]),
          x2: x(range[1]),
          y2: y(range[1]),
          'stroke-dasharray': '5 4',
        }),
        observed.map((value, i) =>
          s(
            'circle',
            { cx: x(value), cy: y(predicted[i]), r: 3, fill: 'var(--accent)', opacity: 0.45 },
            s('title', null, `observed ${text(value, 4)}, predicted ${text(predicted[i], 4)}`),
          ),
        ),
      ],
    ];
  });
}

// A map of numbers from -limit to limit, with names beside it where they fit and a line below that says what is where.
// Columns may have limits of their own.
function numberMap(values, rowNames, columnNames, { limit, limits, label, rowNoun, columnNoun }) {
  const canvas = h('canvas', { role: 'img', 'aria-label': label });
  const readout = h('p', { class: 'readout', 'aria-hidden': true }, 'point at a cell to read it');
  const named = rowNames.length <= MANY_ROWS;
  const rowHeight = named ? 1.35 : Math.min(0.6, 30 / rowNames.length);
  const columns = columnNames.length;
  const few = columns <= 8; // then there is room for their names
  const maxWidth = Math.max(12, (few ? 7 : 3.2) * columns) + 'rem';
  const draw = () => {
    const palette = diverging();
    paint(canvas, values.length, columns, (i) =>
      palette((values[Math.floor(i / columns)][i % columns] ?? 0) / ((limits ? limits[i % columns] : limit) || 1)),
    );
  };
  draw();
  drawn(canvas, draw);
  const tell = (event) => {
    const frame = canvas.getBoundingClientRect();
    const row = Math.min(
      values.length - 1,
      Math.max(0, Math.floor(((event.clientY - frame.top) / frame.height) * values.length)),
    );
    const column = Math.min(
      columns - 1,
      Math.max(0, Math.floor(((event.clientX - frame.left) / frame.width) * columns)),
    );
    readout.textContent = `${rowNoun} ${rowNames[row]}, ${columnNoun} ${columnNames[column]}: ${withSign(text)(values[row][column])}`;
  };
  canvas.addEventListener('pointermove', tell);
  canvas.addEventListener('pointerdown', tell);
  const heads = few || (columns <= 24 && columnNames.every((name) => String(name).length <= 4));
  return h(
    'div',
    null,
    h(
      'div',
      { class: 'map' },
      named
        ? h(
            'div',
            { class: 'rows', style: { gridAutoRows: rowHeight + 'rem', lineHeight: rowHeight + 'rem' } },
            rowNames.map((name) => h('span', { title: name }, name)),
          )
        : h('span'),
      h('div', { style: { height: rowHeight * rowNames.length + 'rem', maxWidth } }, canvas),
      heads &&
        h(
          'div',
          {
            class: columnNames.some((name) => String(name).length > 4) ? 'heads long' : 'heads',
            'aria-hidden': true,
            style: { maxWidth },
          },
          columnNames.map((name) => h('span', { title: name }, name)),
        ),
    ),
    readout,
  );
}
