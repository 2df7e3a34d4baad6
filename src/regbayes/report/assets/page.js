// The page: sections in order, the theme, the way about.

const THEMES = { auto: '◐ auto', light: '☀ light', dark: '☾ dark' };
const SAMPLES = { training: 'on the rows it was fitted to', 'cross-validated': 'cross-validated', new: 'on new rows' };

function stored(value) {
  try {
    // a file opened from disk may have no storage
    if (value !== undefined) localStorage.setItem('regbayes-theme', value);
    return localStorage.getItem('regbayes-theme');
  } catch {
    return null;
  }
}

function themeButton(button) {
  const names = Object.keys(THEMES);
  let theme = names.includes(stored()) ? stored() : 'auto';
  const apply = () => {
    if (theme === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = THEMES[theme];
    button.setAttribute('aria-label', `Colors: ${theme}. Change`);
  };
  apply();
  button.addEventListener('click', () => {
    theme = names[(names.indexOf(theme) + 1) % names.length];
    stored(theme);
    apply();
    redraw();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
}

function overview(data) {
  const { model, effects } = data;
  const columns = effects && data.kind === 'table' ? effects.n_inputs : model.n_inputs;
  const made = columns < model.n_inputs ? ` (${text(model.n_inputs)} once encoded)` : '';
  const inputs = plural(columns, data.kind === 'text' ? 'word' : 'input') + made;
  const about = [model.name, `${text(model.n_rows)} ${model.data_name}`, inputs].join(' · ');
  const notice = ([level, words]) =>
    h('p', { class: 'notice ' + (level === 'warning' ? 'warning' : 'plain'), role: 'note' }, words);
  const tiles = [
    ...model.scores.map((score, i) => scoreTile(model, score, model.deviations[i])),
    featureTile(data.features),
  ];
  return h(
    'div',
    null,
    h('h1', null, data.title),
    h('p', { class: 'soft' }, about),
    model.notices.map(notice),
    h('dl', { class: 'tiles' }, tiles),
  );
}

function featureTile({ noun, n_in_use: n, n_components: most }) {
  if (noun === 'topic') return tile('topics', text(n), '', 'that documents are mixtures of');
  return tile('features in use', text(n), '', `of ${most} that there could be`);
}

function tile(name, value, spread, note, mark) {
  return h(
    'div',
    { class: 'tile' },
    h('dt', null, name),
    h('dd', { class: 'value' }, value, spread && [' ', h('span', { class: 'spread' }, '± ' + spread)]),
    mark && h('dd', { class: 'mark' + (mark === SAMPLES.training ? ' training' : '') }, mark),
    note && h('dd', { class: 'note' }, note),
  );
}

// One number with its deviation, and what it was measured on.
function scoreTile(model, [name, value, note], deviation) {
  const digits = uniform([value, 1]);
  const crossed = /cross-valid/.test(name);
  if (deviation === null)
    return tile(name, digits(value), '', note, crossed || name === 'largest class' ? '' : SAMPLES[model.sample]);
  const meaning = `mean and deviation over folds${note ? '; ' + note : ''}`;
  return tile(name, digits(value), digits(deviation), meaning, crossed ? '' : SAMPLES['cross-validated']);
}

function featuresSection(data) {
  const { noun, number, value_note: note, count_note: count } = data.features;
  const title = sentence(noun) + 's';
  if (!number.length)
    return section(
      'features',
      title,
      `No ${noun} is in use: none tells the ${rowNoun(data)}s apart.`,
      directWeights(data),
    );
  const explorer = new FeatureExplorer(data);
  const view = explorer.view();
  const parts = [noun === 'topic' && topicsAtAGlance(data, explorer), view, directWeights(data)];
  return section(
    'features',
    title,
    `${note} ${count} Choose one by a click or with the arrow keys.`,
    h('div', { class: 'stack' }, parts),
  );
}

function answersSection(data) {
  const bytes = bytesOf(data.examples.pictures, false);
  const { confusion, model } = data;
  const parts = [];
  if (confusion) {
    const many = confusion.classes.length > MANY_CLASSES; // then the matrix has the whole width
    const side = h('div', { class: 'stack' }, !many && confusionView(confusion), classTable(confusion));
    parts.push(many && confusionView(confusion), h('div', { class: 'columns' }, side, pairsView(data, bytes)));
  }
  if (data.regression) parts.push(regressionView(data));
  if (data.reliability) parts.push(reliabilityView(data.reliability));
  if (data.worst) parts.push(worstView(data, bytes));
  if (!parts.length) return null;
  const title = data.regression ? 'Predictions' : 'Errors';
  const doubt = {
    training: ' It was fitted to them, so they look better than those of new ones.',
    new: ' It was not fitted to them.',
    'cross-validated': '',
    '': ' On rows that it was fitted to they are better than on new ones.',
  }[model.sample];
  const lead = `Predictions of the fitted model for the ${text(model.n_rows)} ${model.data_name}.${doubt}`;
  return section('errors', title, data.prediction_note || lead, h('div', { class: 'stack answers' }, parts));
}

function settingsSection({ model: { settings, facts } }) {
  const file = {
    name: 'settings',
    heads: ['parameter', 'value', 'default'],
    rows: () => settings.map(([name, value, changed]) => [name, value, changed ? 'no' : 'yes']),
  };
  const parts = [
    panel('Parameters', '', file, definitions(settings)),
    panel('What the fit found', '', null, definitions(facts)),
  ];
  const lead = 'Parameters that differ from their defaults are in color.';
  return foldedSection('settings', 'Settings', lead, h('div', { class: 'stack' }, parts));
}

// The model and its baselines.
function comparisonSection({ comparison }) {
  const { metric, names, own, scores, deviations, n_things: things, seconds, verdict } = comparison;
  const format = uniform(scores);
  const known = seconds.some((value) => value !== null);
  const score = (i) => h('span', null, format(scores[i]), deviations[i] !== null && ' ± ' + format(deviations[i]));
  const heads = ['model', metric, 'size', ...(known ? ['seconds'] : [])];
  const size = (i) => (things[i] < 0 ? 'not readable' : text(things[i]));
  const cells = names.map((name, i) => [name, score(i), size(i), ...(known ? [text(seconds[i], 2)] : [])]);
  const grid = table('Comparison', heads, cells);
  grid.querySelectorAll('tbody tr')[own].classList.add('own');
  const file = {
    name: 'comparison',
    heads: ['model', metric, 'deviation', 'size', 'seconds'],
    rows: () => names.map((name, i) => [name, scores[i], deviations[i], things[i] < 0 ? null : things[i], seconds[i]]),
  };
  const lead = 'All on the same folds. Size: how many features or weights a reader must understand to know why.';
  return section(
    'comparison',
    'Comparison with baselines',
    verdict,
    panel('The model and its baselines', lead, file, grid),
  );
}

function documentationLink(data, words) {
  return (
    data.documentation && h('a', { href: data.documentation, rel: 'noopener noreferrer', target: '_blank' }, words)
  );
}

// Words of the page, for those who see one for the first time.
function guideSection(data) {
  const { noun, use_name: use, separation_name: separation } = data.features;
  const entries = [
    [
      'net effect',
      `What a change of one input does to the prediction when all other inputs stay as they are. It describes
      the model, not causes: inputs that vary together share their effects.`,
    ],
    [
      'score',
      `The class with the highest score is predicted; of two classes the second where its score is above 0. Scores
      are not probabilities.`,
    ],
    [
      noun,
      `A number that the model computes from the inputs of a ${rowNoun(data)}, and that its predictions depend on.`,
    ],
    ['use', `How much there is of a ${noun}: ${use}.`],
    separation && ['separation', `How well a ${noun} tells targets apart: ${separation}.`],
    ['weight', `What a ${noun} adds to a prediction, per unit of it.`],
    [
      'margin',
      'By how much the score of the right answer exceeds the best other one; below 0 the prediction is wrong.',
    ],
    [
      'cross-validated',
      `Measured on rows that the fit had not seen: each part of the rows was left out once. ± is the
      standard deviation over the parts.`,
    ],
    ['on the rows it was fitted to', 'Better than it will be on new rows; how much better is unknown.'],
  ].filter(Boolean);
  const words = h(
    'dl',
    { class: 'guide' },
    entries.map(([name, meaning]) => [h('dt', null, name), h('dd', null, meaning)]),
  );
  const more = h('p', null, documentationLink(data, 'The documentation of regbayes'));
  return foldedSection('guide', 'How to read this page', '', h('div', { class: 'panel' }, words, more));
}

function build() {
  const data = JSON.parse(document.getElementById('data').textContent);
  themeButton(document.getElementById('theme'));
  const shared =
    data.tasks &&
    `${plural(data.tasks.names.length, 'task')} that share the ${data.features.noun}s, each with weights of its own.`;
  const sections = [
    data.effects && effectsSection(data),
    featuresSection(data),
    data.comparison && comparisonSection(data),
    answersSection(data),
    data.tasks && section('tasks', 'Tasks', shared, tasksView(data)),
    data.history && historySection(data),
    settingsSection(data),
    guideSection(data),
  ].filter(Boolean);
  const short = { comparison: 'Comparison', guide: 'Guide' };
  const link = (node) => h('a', { href: '#' + node.id }, short[node.id] ?? node.querySelector('h2').textContent);
  document.getElementById('nav').append(...sections.map(link));
  const footer = h(
    'footer',
    null,
    'Written by regbayes. This page is one file: it loads nothing and sends nothing. ',
    h('a', { href: '#guide' }, 'How to read this page'),
    data.documentation && [' · ', documentationLink(data, 'Documentation')],
  );
  document.getElementById('main').append(overview(data), ...sections, footer);
  // A link to a closed section opens it, and paper has no clicks.
  document.addEventListener('click', (event) => {
    const goal = event.target.closest?.('a')?.hash?.slice(1);
    if (goal) document.getElementById(goal)?.querySelector('details')?.setAttribute('open', '');
  });
  addEventListener('beforeprint', () => {
    for (const details of document.querySelectorAll('details:not([open])')) details.setAttribute('open', '');
    redraw();
  });
}

try {
  build();
} catch (error) {
  // data that were changed by hand; say so rather than show half a page
  const words = 'This page cannot be shown: its data are damaged. Write it again.';
  document.getElementById('main').replaceChildren(h('p', null, words));
  console.error(error);
}
