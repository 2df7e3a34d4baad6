// Elements, text, tables and panels. Text from the data becomes text nodes and attribute values, and never markup.

const SVG = 'http://www.w3.org/2000/svg';
const MANY_LINES = 12;

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

// --- text

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
  const round = (value) =>
    value
      .toFixed(places)
      .replace(/^-(0\.?0*)$/, '$1')
      .replace('-', '−');
  return (value) => (value === null || value === undefined ? '–' : round(value));
}

// The largest size among numbers; there may be too many of them to be arguments of Math.max.
function largest(values) {
  return values.reduce((most, value) => Math.max(most, Math.abs(value ?? 0)), 1e-12);
}

function total(values) {
  return values.reduce((sum, value) => sum + value, 0);
}

// The places of some values, those with the largest keys first.
function ranked(values, key = (value) => value) {
  const keys = values.map((value) => key(value) ?? -Infinity);
  return keys.map((_, i) => i).sort((a, b) => keys[b] - keys[a] || a - b);
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

function sentence(words) {
  return words.charAt(0).toUpperCase() + words.slice(1);
}

// A name that may be broken where words end in it, before it is broken anywhere.
function breakable(name) {
  const parts = String(name).split(/(?<=[_./:-])/);
  return parts.flatMap((part, i) => (i ? [h('wbr'), part] : [part]));
}

// --- drawings and colors

// What depends on the theme or on the width of the window is drawn by functions that are kept, and drawn again.
const drawings = new Map();

function drawn(node, draw) {
  drawings.set(node, draw);
  return node;
}

function redraw() {
  for (const [node, draw] of [...drawings]) {
    if (node.isConnected) draw();
    else drawings.delete(node);
  }
}

const probe = h('span', { hidden: true });

function color(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(--${name})`;
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
  const [zero, plus, minus] = [color('zero'), color('accent'), color('warm')];
  return (share) => mixed(zero, share >= 0 ? plus : minus, Math.min(1, Math.abs(share) ** 0.65));
}

function bytesOf(packed, signed) {
  if (!packed) return null;
  const bytes = Uint8Array.from(atob(packed.bytes), (character) => character.charCodeAt(0));
  return signed ? new Int8Array(bytes.buffer) : bytes;
}

// --- parts of the page

function section(id, title, lead, ...content) {
  const head = h('header', null, h('h2', { id: id + '-title' }, title), lead && h('p', null, lead));
  return h('section', { id, 'aria-labelledby': id + '-title' }, head, ...content);
}

// A section for those who want to know: closed until it is asked for, and open on paper.
function foldedSection(id, title, lead, ...content) {
  const summary = h('summary', null, h('h2', { id: id + '-title' }, title));
  const details = h('details', null, summary, h('header', null, lead && h('p', null, lead)), ...content);
  return h('section', { id, class: 'folded', 'aria-labelledby': id + '-title' }, details);
}

// A panel; with a file it gives what it shows as CSV. file: {name, heads, rows()}.
function panel(title, lead, file, ...content) {
  const head = [h('h3', null, title), file && csvButton(file), h('p', { class: 'soft small' }, lead || '')];
  return h('div', { class: file ? 'panel has-csv' : 'panel' }, head, ...content);
}

function definitions(pairs, kind = 'settings') {
  const line = ([name, value, changed]) =>
    h('div', { class: changed && 'changed' }, h('dt', null, name), h('dd', null, value));
  return h('dl', { class: kind }, pairs.map(line));
}

function chooser(label, names, chosen, choose) {
  const option = (name, i) => h('option', { value: i, selected: i === chosen }, name);
  const change = (event) => choose(Number(event.target.value));
  const select = h('select', { class: 'choice', change }, names.map(option));
  return h('p', { class: 'chooser' }, h('label', null, label + ' ', select));
}

function moreButton(label, click) {
  const button = h('button', { type: 'button', class: 'more', click: () => (button.remove(), click()) }, label);
  return button;
}

// --- tables

// Cells are numbers, text or elements. A column of numbers has one number of decimals. A sortable table is sorted by a
// click on a head, best first and then worst first.
function table(label, heads, rows, { sortable = false, open = null, kind = '' } = {}) {
  const numeric = heads.map((_, j) => rows.every((row) => row[j] === null || typeof row[j] === 'number'));
  const formats = heads.map((_, j) => (numeric[j] ? uniform(rows.map((row) => row[j])) : (value) => value));
  const body = h('tbody');
  const cell = (value, j) => {
    const attributes = { class: numeric[j] ? 'num' : 'name', title: typeof value === 'string' ? value : null };
    return h('td', attributes, formats[j](value));
  };
  const line = (row) => h('tr', { click: open && (() => open(row)) }, row.map(cell));
  const show = (some) => body.replaceChildren(...some.map(line));
  let [column, descending] = [null, true];
  const sort = (j) => {
    descending = column === j ? !descending : numeric[j];
    column = j;
    const compare = numeric[j]
      ? (a, b) => (a[j] ?? -Infinity) - (b[j] ?? -Infinity)
      : (a, b) => String(a[j]).localeCompare(String(b[j]), 'en', { numeric: true });
    const sorted = [...rows].sort((a, b) => (descending ? -1 : 1) * compare(a, b));
    headCells.forEach((node) => node.removeAttribute('aria-sort'));
    headCells[j].setAttribute('aria-sort', descending ? 'descending' : 'ascending');
    show(sorted);
  };
  const headCells = heads.map((name, j) => {
    const content = sortable ? h('button', { type: 'button', click: () => sort(j) }, name) : breakable(name);
    return h('th', { scope: 'col', class: numeric[j] ? 'num input' : 'input', title: name }, content);
  });
  show(rows);
  const caption = h('caption', { class: 'hidden-text' }, label);
  const grid = h('table', { class: 'grid-table ' + kind }, caption, h('thead', null, h('tr', null, headCells)), body);
  const long = rows.length > MANY_LINES;
  return h('div', { class: long ? 'scroll tall' : 'scroll', tabindex: long ? 0 : null }, grid);
}

// Text that a spreadsheet would run as a formula gets a quotation mark in front.
function csvCell(value) {
  if (value === null || value === undefined) return '';
  if (typeof value === 'number') return String(value);
  const safe = /^[=+\-@\t\r]/.test(value) ? "'" + value : String(value);
  return /[",\n\r]/.test(safe) ? '"' + safe.replaceAll('"', '""') + '"' : safe;
}

function csvButton({ name, heads, rows }) {
  const download = () => {
    const content = [heads, ...rows()].map((row) => row.map(csvCell).join(',') + '\r\n').join('');
    const href = URL.createObjectURL(new Blob(['\ufeff' + content], { type: 'text/csv;charset=utf-8' }));
    h('a', { href, download: name.replaceAll(/[^\p{L}\p{N}]+/gu, '-').toLowerCase() + '.csv' }).click();
    setTimeout(() => URL.revokeObjectURL(href), 10000);
  };
  const attributes = { 'aria-label': `Download as CSV: ${name}`, title: 'Download this table as CSV', click: download };
  return h('button', { type: 'button', class: 'csv', ...attributes }, 'CSV');
}
