// All topics in one table: what each is about, and what it speaks for. A click opens a topic below.

const GLANCE_WORDS = 8;

function topicsAtAGlance(data, explorer) {
  const { features } = data;
  const one = features.output_names.length === 1 && features.output_title === 'target';
  const order = features.number.map((_, i) => i);
  if (one) order.sort((a, b) => features.weights[b][0] - features.weights[a][0]);
  const limit = largest(features.weights.flat());
  const format = withSign(uniform(features.weights.flat()));
  const open = (place) => {
    explorer.select(place, false);
    explorer.detail.scrollIntoView({ block: 'start' });
  };
  const line = (place) =>
    h(
      'tr',
      { click: () => open(place) },
      h('td', { class: 'num' }, h('button', { type: 'button', class: 'link' }, features.number[place])),
      h('td', null, one ? weightBar(features.weights[place][0], limit, format) : speaksFor(features, place)),
      h('td', { class: 'num share' }, (100 * features.mean[place]).toFixed(1) + '%'),
      h('td', { class: 'words' }, features.distinctive[place].slice(0, GLANCE_WORDS).join(', ')),
    );
  const heads = ['topic', one ? 'weight' : 'speaks for', 'share', 'words that tell it from the others'];
  const lead = one
    ? 'From what raises the prediction most to what lowers it most.'
    : 'The most frequent first, each with what it speaks for most.';
  const glance = panel(
    'At a glance',
    lead,
    h(
      'div',
      { class: 'scroll tall', tabindex: order.length > 12 ? 0 : null },
      h(
        'table',
        { class: 'grid-table glance' },
        h('caption', { class: 'hidden-text' }, 'All topics'),
        h(
          'thead',
          null,
          h(
            'tr',
            null,
            heads.map((name, i) => h('th', { scope: 'col', class: ['num', '', 'num share', ''][i] }, name)),
          ),
        ),
        h('tbody', null, order.map(line)),
      ),
    ),
  );
  return withCsv(
    glance,
    'topics',
    ['topic', 'share', ...features.output_names.map((name) => 'weight: ' + name), 'words'],
    () =>
      order.map((place) => [
        features.number[place],
        features.mean[place],
        ...features.weights[place],
        features.distinctive[place].join(' '),
      ]),
  );
}

function weightBar(weight, limit, format) {
  const width = (50 * Math.abs(weight)) / limit;
  return h(
    'span',
    { class: 'weight' },
    h(
      'span',
      { class: 'track', 'aria-hidden': true },
      h('i', {
        class: weight < 0 ? 'minus' : 'plus',
        style: { left: (weight < 0 ? 50 - width : 50) + '%', width: Math.max(0.8, width) + '%' },
      }),
    ),
    h('span', { class: 'number' }, format(weight)),
  );
}

// The class with the largest weight, and the next where it is nearly as large; of two classes the first has no weights.
function speaksFor(features, place) {
  const weights = features.weights[place];
  const names = features.output_names;
  if (names.length === 1) {
    const other = features.group_names.find((name) => name !== names[0]) ?? 'not ' + names[0];
    return weights[0] > 0 ? names[0] : other;
  }
  const order = weights.map((_, i) => i).sort((a, b) => weights[b] - weights[a]);
  const close = order.filter((i) => weights[i] > 0 && weights[i] > 0.5 * weights[order[0]]).slice(0, 2);
  return close.map((i) => names[i]).join(', ') || '–';
}
