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
