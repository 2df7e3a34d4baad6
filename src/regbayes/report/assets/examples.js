// Samples on the page: what each is, what was predicted for it, and its picture.

function rowNoun(data) {
  return data.kind === 'text' ? 'document' : 'row';
}

// What the targets are called.
function targetName(data) {
  return data.model.target_name || 'target';
}

// The truth about a sample, and what was predicted where that differs.
function answer(data, example) {
  const [truth, prediction] = [data.examples.truths[example], data.examples.predictions[example]];
  if (!prediction || truth === prediction) return h('span', null, truth);
  if (data.regression) return h('span', null, truth, h('span', { class: 'soft' }, ', predicted ' + prediction));
  return h('span', null, truth, ' ', h('span', { class: 'wrong' }, (data.confusion ? '→ ' : '– ') + prediction));
}

function exampleThumb(data, bytes, example) {
  const { names, truths, pictures } = data.examples;
  return thumbnail(pictures, bytes, example, [names[example], truths[example]].filter(Boolean).join(', '));
}

// The name of a sample; a click shows all that is known of it.
function rowLink(data, example, note, content) {
  const attributes = { 'aria-haspopup': 'dialog', click: () => openRow(data, example, note) };
  return h(
    'button',
    { type: 'button', class: 'link row-link', ...attributes },
    content ?? data.examples.names[example],
  );
}

// Samples as pictures, as texts or as lines of a table, whatever the data have. notes: what is said of each.
function exampleList(data, bytes, examples, notes, columns) {
  const { names, texts } = data.examples;
  if (data.examples.pictures) {
    const item = (example, i) => {
      const [first, second] = notes(example, i);
      const caption = h('div', { class: 'cap' }, h('div', null, first), h('div', { class: 'soft number' }, second));
      return h('li', null, rowLink(data, example, second, exampleThumb(data, bytes, example)), caption);
    };
    return h('ol', { class: 'thumbs' }, examples.map(item));
  }
  if (data.kind === 'text' && texts.some(Boolean)) {
    const item = (example, i) => {
      const said = notes(example, i).filter((note) => note !== names[example]);
      const meta = h(
        'div',
        { class: 'meta' },
        rowLink(data, example),
        said.map((note) => [' · ', note]),
      );
      return h('li', null, meta, texts[example]);
    };
    return h('ol', { class: 'texts' }, examples.map(item));
  }
  const rows = examples.map((example, i) => [rowLink(data, example, columns.note?.(i)), ...columns.cells(example, i)]);
  return table('Examples', ['row', ...columns.heads], rows);
}

function openRow(data, example, note) {
  const { names, truths, predictions, texts, input_names: inputs, inputs: cells, pictures } = data.examples;
  const single = data.regression || data.confusion;
  const facts = [
    [targetName(data), truths[example]],
    [single ? 'predicted' : 'wrong', predictions[example]],
    ['what happened', !single && note],
  ].filter(([, value]) => value);
  const mine = (cells[example] ?? []).map((value, i) => [
    inputs[i],
    typeof value === 'number' ? text(value, 4) : value,
  ]);
  const close = h('button', { type: 'button', class: 'close', click: () => dialog.close() }, 'Close');
  const dialog = h(
    'dialog',
    { class: 'row-dialog', 'aria-labelledby': 'row-dialog-title', close: () => dialog.remove() },
    h('div', { class: 'detail-head' }, h('h3', { id: 'row-dialog-title' }, names[example]), close),
    definitions(facts, 'settings one'),
    pictures && h('div', { class: 'loading-picture' }, exampleThumb(data, bytesOf(pictures, false), example)),
    texts[example] && h('p', { class: 'whole-text' }, texts[example]),
    mine.length > 0 && h('h4', null, data.effects ? 'Inputs, those with the largest effects first' : 'Inputs'),
    mine.length > 0 && definitions(mine, 'settings one'),
  );
  dialog.addEventListener('click', (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
}
