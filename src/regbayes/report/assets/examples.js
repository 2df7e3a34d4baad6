// Rows on the page: what each is, what it was taken for, and its picture.

function rowNoun(data) {
  return data.kind === 'text' ? 'document' : 'row';
}

// What a row is, and what it was taken for where that differs.
function answer(data, example) {
  const { truths, predictions } = data.examples;
  const [truth, prediction] = [truths[example], predictions[example]];
  if (!prediction || truth === prediction) return h('span', null, truth);
  if (data.regression) return h('span', null, truth, h('span', { class: 'soft' }, ', predicted ' + prediction));
  return h('span', null, truth, ' ', h('span', { class: 'wrong' }, (data.confusion ? '→ ' : '– ') + prediction));
}

function exampleThumb(data, bytes, example) {
  const { names, truths } = data.examples;
  return thumbnail(
    data.examples.pictures,
    bytes,
    example,
    names[example] + (truths[example] ? ', ' + truths[example] : ''),
  );
}

// What the targets are called.
function targetName(data) {
  return data.model.target_name || 'target';
}

// A value of an input: a number, or a category.
function cellText(value) {
  return typeof value === 'string' ? value : text(value, 4);
}

// The name of a row; a click shows all that is known of it.
function rowLink(data, example, note, content) {
  return h(
    'button',
    { type: 'button', class: 'link row-link', 'aria-haspopup': 'dialog', click: () => openRow(data, example, note) },
    content ?? data.examples.names[example],
  );
}

function openRow(data, example, note) {
  const { names, truths, predictions, texts, input_names: inputs, inputs: cells, pictures } = data.examples;
  const facts = [];
  if (truths[example]) facts.push([targetName(data), truths[example]]);
  if (predictions[example])
    facts.push([data.regression || data.confusion ? 'predicted' : 'wrong', predictions[example]]);
  if (note && !(data.regression || data.confusion)) facts.push(['what happened', note]);
  const mine = cells[example] ?? [];
  const dialog = h(
    'dialog',
    { class: 'row-dialog', 'aria-labelledby': 'row-dialog-title', close: () => dialog.remove() },
    h(
      'div',
      { class: 'detail-head' },
      h('h3', { id: 'row-dialog-title' }, names[example]),
      h('button', { type: 'button', class: 'close', click: () => dialog.close() }, 'Close'),
    ),
    h(
      'dl',
      { class: 'settings one' },
      facts.map(([name, value]) => h('div', null, h('dt', null, name), h('dd', null, value))),
    ),
    pictures && h('div', { class: 'loading-picture' }, exampleThumb(data, bytesOf(pictures, false), example)),
    texts[example] && h('p', { class: 'whole-text' }, texts[example]),
    mine.length > 0 && h('h4', null, data.effects ? 'Inputs, those with the largest effects first' : 'Inputs'),
    mine.length > 0 &&
      h(
        'dl',
        { class: 'settings one' },
        inputs.map((name, i) => h('div', null, h('dt', null, name), h('dd', null, cellText(mine[i])))),
      ),
  );
  dialog.addEventListener('click', (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
}
