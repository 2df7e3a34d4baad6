// Elements, text and colours. Text from the data becomes text nodes and attribute values here, and never markup.

const SVG = 'http://www.w3.org/2000/svg';

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') node.addEventListener(name, value);
    else if (name === 'style') Object.assign(node.style, value);
    else node.setAttribute(name, value === true ? '' : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function text(value, digits = 3) {
  if (value === null || value === undefined) return '–';
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-4)) return value.toExponential(2).replace('-', '−');
  if (Number.isInteger(value) || size >= 1000) return Math.round(value).toLocaleString('en-US').replace('-', '−');
  return String(Number(value.toPrecision(digits))).replace('-', '−');
}

// One number of decimals for numbers that stand below each other: three digits of the largest, and three for shares.
function uniform(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  const size = Math.max(...known.map(Math.abs), 0);
  if (known.every(Number.isInteger) || size >= 1000 || size < 1e-3) return (value) => text(value);
  const places = size <= 1 ? Math.min(5, 3 - Math.ceil(Math.log10(size))) : 2 - Math.floor(Math.log10(size));
  return (value) =>
    value === null || value === undefined
      ? '–'
      : value
          .toFixed(places)
          .replace(/^-(0\.?0*)$/, '$1')
          .replace('-', '−');
}

// The largest size among numbers; there may be too many of them to be arguments of Math.max.
function largest(values) {
  return values.reduce((most, value) => Math.max(most, Math.abs(value ?? 0)), 1e-12);
}

function withSign(format) {
  return (value) => (value > 0 ? '+' : '') + format(value);
}

function percent(value) {
  return value === null ? '–' : (100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0) + '%';
}

function plural(count, noun) {
  return text(count) + ' ' + noun + (count === 1 ? '' : 's');
}

// What depends on the theme or on the width of the window is drawn by functions that are kept, and drawn again.
const drawings = new Map();

function drawn(node, draw) {
  drawings.set(node, draw);
  return node;
}

function redraw(root = document) {
  for (const [node, draw] of [...drawings]) {
    if (!node.isConnected) drawings.delete(node);
    else if (root.contains(node)) draw();
  }
}

const probe = document.createElement('span');
probe.hidden = true;

function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = 'var(--' + name + ')';
  return getComputedStyle(probe)
    .color.match(/[\d.]+/g)
    .slice(0, 3)
    .map(Number);
}

function mixed(from, to, share) {
  return from.map((value, i) => Math.round(value + (to[i] - value) * share));
}

// Blue for plus, orange for minus, the ground for zero; the root spreads small values out.
function diverging() {
  const [zero, plus, minus] = [colour('zero'), colour('accent'), colour('warm')];
  return (share) => mixed(zero, share >= 0 ? plus : minus, Math.min(1, Math.abs(share) ** 0.65));
}

function bytesOf(packed, signedBytes) {
  const raw = atob(packed.bytes);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return signedBytes ? new Int8Array(bytes.buffer) : bytes;
}

function section(id, title, lead, ...content) {
  return h(
    'section',
    { id, 'aria-labelledby': id + '-title' },
    h('header', null, h('h2', { id: id + '-title' }, title), lead && h('p', null, lead)),
    ...content,
  );
}

// A section for those who want to know: closed until it is asked for, and open on paper.
function foldedSection(id, title, lead, ...content) {
  return h(
    'section',
    { id, class: 'folded', 'aria-labelledby': id + '-title' },
    h(
      'details',
      null,
      h('summary', null, h('h2', { id: id + '-title' }, title)),
      h('header', null, lead && h('p', null, lead)),
      ...content,
    ),
  );
}

function panel(title, lead, ...content) {
  return h('div', { class: 'panel' }, h('h3', null, title), h('p', { class: 'soft small' }, lead || ''), ...content);
}

// A name that may be broken where words end in it, before it is broken anywhere.
function breakable(name) {
  return String(name)
    .split(/(?<=[_./:-])/)
    .flatMap((part, i) => (i ? [h('wbr'), part] : [part]));
}

function sentence(words) {
  return words.charAt(0).toUpperCase() + words.slice(1);
}

// A table as a file. Text that a spreadsheet would run as a formula gets a quotation mark in front.
function csvText(rows) {
  const cell = (value) => {
    if (value === null || value === undefined) return '';
    if (typeof value === 'number') return String(value);
    const safe = /^[=+\-@\t\r]/.test(value) ? "'" + value : String(value);
    return /[",\n\r]/.test(safe) ? '"' + safe.replaceAll('"', '""') + '"' : safe;
  };
  return rows.map((row) => row.map(cell).join(',')).join('\r\n') + '\r\n';
}

function csvButton(name, heads, rows) {
  return h(
    'button',
    {
      type: 'button',
      class: 'csv',
      'aria-label': `Download as CSV: ${name}`,
      title: 'Download this table as CSV',
      click: () => {
        const blob = new Blob(['\ufeff' + csvText([heads, ...rows()])], { type: 'text/csv;charset=utf-8' });
        const link = h('a', { download: name.replaceAll(/[^\p{L}\p{N}]+/gu, '-').toLowerCase() + '.csv' });
        link.href = URL.createObjectURL(blob);
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 10000);
      },
    },
    'CSV',
  );
}

// Give a panel the table that it shows, as a file.
function withCsv(node, name, heads, rows) {
  node.classList.add('has-csv');
  node.querySelector('h3').after(csvButton(name, heads, rows));
  return node;
}
