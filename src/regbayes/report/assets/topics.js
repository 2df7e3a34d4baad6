// All topics in one table: what each is about, and its weights. A click opens a topic below.

const GLANCE_WORDS = 8;

function topicsAtAGlance(data, explorer) {
  const { features } = data;
  const { number, mean, weights, output_names: names, distinctive } = features;
  const one = names.length === 1 && features.output_title === 'target';
  const order = one ? ranked(weights, ([weight]) => weight) : number.map((_, i) => i);
  const limit = largest(weights.flat());
  const format = withSign(uniform(weights.flat()));
  const weight = (value) => {
    const figure = h('span', { class: 'number' }, format(value));
    return h('span', { class: 'weight' }, signedTrack(value, limit), figure);
  };
  const rows = order.map((place) => [
    h('button', { type: 'button', class: 'link', 'data-place': place }, number[place]),
    one ? weight(weights[place][0]) : supports(features, place),
    h('span', { class: 'number' }, (100 * mean[place]).toFixed(1) + '%'),
    distinctive[place].slice(0, GLANCE_WORDS).join(', '),
  ]);
  const open = ([button]) => {
    explorer.select(Number(button.dataset.place), false);
    explorer.detail.scrollIntoView({ block: 'start' });
  };
  const heads = ['topic', one ? 'weight' : 'positive weight for', 'share', 'words that tell it from the others'];
  const file = {
    name: 'topics',
    heads: ['topic', 'share', ...names.map((name) => 'weight: ' + name), 'words'],
    rows: () => order.map((i) => [number[i], mean[i], ...weights[i], distinctive[i].join(' ')]),
  };
  const lead = one
    ? 'From what raises the prediction most to what lowers it most.'
    : 'The most frequent first, each with the classes that it has the largest weights for.';
  return panel('At a glance', lead, file, table('All topics', heads, rows, { open, kind: 'glance' }));
}

// The class with the largest weight, and the next where it is nearly as large; of two classes the first has no weights.
function supports(features, place) {
  const [weights, names] = [features.weights[place], features.output_names];
  if (names.length === 1) {
    const other = features.group_names.find((name) => name !== names[0]) ?? 'not ' + names[0];
    return weights[0] > 0 ? names[0] : other;
  }
  const order = ranked(weights);
  const close = order.filter((i) => weights[i] > 0 && weights[i] > 0.5 * weights[order[0]]).slice(0, 2);
  return close.map((i) => names[i]).join(', ') || '–';
}
