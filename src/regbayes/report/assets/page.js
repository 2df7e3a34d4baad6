// The page: sections in order, the theme, the way about.

const THEMES = ['auto', 'light', 'dark'];

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
  let theme = THEMES.includes(stored()) ? stored() : 'auto';
  const apply = () => {
    if (theme === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = { auto: '◐ auto', light: '☀ light', dark: '☾ dark' }[theme];
    button.setAttribute('aria-label', `Colours: ${theme}. Change`);
  };
  apply();
  button.addEventListener('click', () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    stored(theme);
    apply();
    redraw();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => redraw());
}

function overview(data) {
  const { model } = data;
  const inUse = data.features.all_in_use.filter(Boolean).length;
  const tiles = [
    ...model.scores,
    data.features.noun === 'topic'
      ? ['topics', null, 'that documents are mixtures of', text(data.features.all_use.length)]
      : ['features in use', null, `of ${data.features.all_use.length} that there could be`, text(inUse)],
  ];
  return h(
    'div',
    null,
    h('h1', null, data.title),
    h(
      'p',
      { class: 'soft' },
      [model.name, `${text(model.n_rows)} ${model.data_name}`, plural(model.n_inputs, data.kind === 'text' ? 'word' : 'input')].join(' · '),
    ),
    h(
      'dl',
      { class: 'tiles' },
      tiles.map(([name, value, note, shown]) =>
        h(
          'div',
          { class: 'tile' },
          h('dt', null, name),
          h('dd', { class: 'value' }, shown ?? text(value)),
          note && h('dd', { class: 'note' }, note),
        ),
      ),
    ),
  );
}

function featuresSection(data) {
  const { features } = data;
  const title = sentence(features.noun) + 's';
  if (!features.number.length)
    return section('features', title, `No ${features.noun} is in use: none tells the ${rowNoun(data)}s apart.`);
  const explorer = new FeatureExplorer(data);
  return section(
    'features',
    title,
    features.value_note + ' Choose one by a click or with the arrow keys.',
    h('div', { class: 'stack' }, features.noun === 'topic' && topicsAtAGlance(data, explorer), explorer.view()),
  );
}

function answersSection(data) {
  const bytes = data.examples.pictures && bytesOf(data.examples.pictures, false);
  const parts = [];
  if (data.confusion) {
    // A matrix of many classes has the whole width.
    const many = data.confusion.classes.length > MANY_CLASSES;
    const side = h('div', { class: 'stack' }, !many && confusionView(data), classTable(data));
    if (many) parts.push(confusionView(data));
    parts.push(h('div', { class: 'columns' }, side, pairsView(data, bytes)));
  }
  if (data.regression) parts.push(regressionView(data));
  if (data.worst) parts.push(worstView(data, bytes));
  if (!parts.length) return null;
  const title = data.regression ? 'Predictions' : 'Where it errs';
  const lead =
    data.prediction_note ||
    `Predictions of the fitted model for the ${text(data.model.n_rows)} ${data.model.data_name}. On rows that it was fitted to they are better than on new ones.`;
  return section('errors', title, lead, h('div', { class: 'stack answers' }, parts));
}

function countSection(data) {
  const { all_use: use, all_in_use: inUse, use_name: name, count_note: verdict, noun } = data.features;
  const count = inUse.filter(Boolean).length;
  return section(
    'count',
    `How many ${noun}s`,
    verdict,
    h(
      'div',
      { class: 'panel' },
      h('p', { class: 'soft small' }, sentence(name)),
      h('div', null, useChart(use, inUse, noun, `Use of all ${noun}s: ${count} of ${use.length} are in use`)),
    ),
  );
}

function settingsSection(data) {
  const { settings, facts } = data.model;
  return section(
    'settings',
    'Settings',
    'Parameters that differ from their defaults are in colour.',
    h(
      'div',
      { class: 'stack' },
      h(
        'div',
        { class: 'panel' },
        h(
          'dl',
          { class: 'settings' },
          settings.map(([name, value, changed]) =>
            h('div', { class: changed ? 'changed' : '' }, h('dt', null, name), h('dd', null, value)),
          ),
        ),
      ),
      panel(
        'What the fit found',
        '',
        h(
          'dl',
          { class: 'settings' },
          facts.map(([name, value]) => h('div', null, h('dt', null, name), h('dd', null, value))),
        ),
      ),
    ),
  );
}

function build() {
  const data = JSON.parse(document.getElementById('data').textContent);
  themeButton(document.getElementById('theme'));
  const sections = [
    featuresSection(data),
    answersSection(data),
    data.tasks &&
      section(
        'tasks',
        'Tasks',
        `${plural(data.tasks.names.length, 'task')} that share the ${data.features.noun}s, each with weights of its own.`,
        tasksView(data),
      ),
    countSection(data),
    data.course && courseSection(data),
    settingsSection(data),
  ].filter(Boolean);
  document
    .getElementById('nav')
    .append(...sections.map((node) => h('a', { href: '#' + node.id }, node.querySelector('h2').textContent)));
  document
    .getElementById('main')
    .append(
      overview(data),
      ...sections,
      h('footer', null, 'Written by regbayes. This page is one file: it loads nothing and sends nothing.'),
    );
}

try {
  build();
} catch (error) {
  // data that were changed by hand; say so rather than show half a page
  document
    .getElementById('main')
    .replaceChildren(h('p', null, 'This page cannot be shown: its data are damaged. Write it again.'));
  console.error(error);
}
