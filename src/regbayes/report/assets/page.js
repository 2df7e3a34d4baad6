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

const SAMPLES = {
  training: 'on the rows it was fitted to',
  'cross-validated': 'cross-validated',
  new: 'on new rows',
  '': '',
};

function overview(data) {
  const { model, effects } = data;
  const tiles = model.scores.map(([name, value, note], i) => scoreTile(model, name, value, note, model.deviations[i]));
  tiles.push(featureTile(data.features));
  const columns = effects && data.kind === 'table' ? effects.n_inputs : model.n_inputs;
  const made = columns < model.n_inputs ? ` (${text(model.n_inputs)} once encoded)` : '';
  return h(
    'div',
    null,
    h('h1', null, data.title),
    h(
      'p',
      { class: 'soft' },
      [
        model.name,
        `${text(model.n_rows)} ${model.data_name}`,
        plural(columns, data.kind === 'text' ? 'word' : 'input') + made,
      ].join(' · '),
    ),
    model.notices.map(([level, words]) =>
      h('p', { class: 'notice ' + (level === 'warning' ? 'warning' : 'plain'), role: 'note' }, words),
    ),
    h('dl', { class: 'tiles' }, tiles),
  );
}

function featureTile(features) {
  const [inUse, all] = [features.all_in_use.filter(Boolean).length, features.all_use.length];
  if (features.noun === 'topic') return tile('topics', text(all), '', 'that documents are mixtures of');
  if (inUse || !features.number.length)
    return tile('features in use', text(inUse), '', `of ${all} that there could be`);
  const different = features.number.filter((_, i) => (features.twins?.[i] ?? -1) < 0 && !features.idle?.[i]).length;
  return tile('different features', text(different), '', `of ${all}: soft, none is counted as in use`);
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
function scoreTile(model, name, value, note, deviation) {
  const digits = uniform([value, 1]);
  if (deviation === null || deviation === undefined)
    return tile(name, digits(value), '', note, /cross-valid|^largest class$/.test(name) ? '' : SAMPLES[model.sample]);
  const mark = /cross-valid/.test(name) ? '' : 'cross-validated';
  return tile(name, digits(value), digits(deviation), `mean and deviation over folds${note ? '; ' + note : ''}`, mark);
}

function featuresSection(data) {
  const { features } = data;
  const title = sentence(features.noun) + 's';
  if (!features.number.length)
    return section(
      'features',
      title,
      `No ${features.noun} is in use: none tells the ${rowNoun(data)}s apart.`,
      directWeights(data),
    );
  const explorer = new FeatureExplorer(data);
  return section(
    'features',
    title,
    features.value_note + ' Choose one by a click or with the arrow keys.',
    h(
      'div',
      { class: 'stack' },
      features.noun === 'topic' && topicsAtAGlance(data, explorer),
      explorer.view(),
      directWeights(data),
    ),
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
  if (data.reliability) parts.push(reliabilityView(data.reliability));
  if (data.worst) parts.push(worstView(data, bytes));
  if (!parts.length) return null;
  const title = data.regression ? 'Predictions' : 'Where it errs';
  const doubt = {
    training: ' It was fitted to them, so they look better than those of new ones.',
    new: ' It was not fitted to them.',
    'cross-validated': '',
    '': ' On rows that it was fitted to they are better than on new ones.',
  }[data.model.sample];
  const lead =
    data.prediction_note ||
    `Predictions of the fitted model for the ${text(data.model.n_rows)} ${data.model.data_name}.${doubt}`;
  return section('errors', title, lead, h('div', { class: 'stack answers' }, parts));
}

function countSection(data) {
  const { all_use: use, all_in_use: inUse, use_name: name, count_note: verdict, noun } = data.features;
  const count = inUse.filter(Boolean).length;
  return section(
    'count',
    `How many ${noun}s`,
    verdict,
    withCsv(
      panel(
        `Use of all ${noun}s`,
        sentence(name),
        h('div', null, useChart(use, inUse, noun, `Use of all ${noun}s: ${count} of ${use.length} are in use`)),
      ),
      `use of ${noun}s`,
      [noun, 'use', 'in use'],
      () => use.map((value, k) => [k, value, inUse[k] ? 'yes' : 'no']),
    ),
  );
}

function settingsSection(data) {
  const { settings, facts } = data.model;
  return foldedSection(
    'settings',
    'Settings',
    'Parameters that differ from their defaults are in colour.',
    h(
      'div',
      { class: 'stack' },
      withCsv(
        panel(
          'Parameters',
          '',
          h(
            'dl',
            { class: 'settings' },
            settings.map(([name, value, changed]) =>
              h('div', { class: changed ? 'changed' : '' }, h('dt', null, name), h('dd', null, value)),
            ),
          ),
        ),
        'settings',
        ['parameter', 'value', 'default'],
        () => settings.map(([name, value, changed]) => [name, value, changed ? 'no' : 'yes']),
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

// The model beside plain ones.
function comparisonSection({ comparison }) {
  const { metric, names, own, scores, deviations, n_things: things, seconds, verdict } = comparison;
  const format = uniform(scores);
  const known = seconds.some((value) => value !== null);
  return section(
    'worth',
    'Is it worth it?',
    verdict,
    withCsv(
      panel(
        'Beside plain models',
        'All on the same folds. Things to look at: what a reader must understand to know why, features or weights.',
        h(
          'div',
          { class: 'scroll' },
          h(
            'table',
            { class: 'grid-table' },
            h(
              'thead',
              null,
              h(
                'tr',
                null,
                h('th', { scope: 'col' }, 'model'),
                h('th', { scope: 'col', class: 'num' }, metric),
                h('th', { scope: 'col', class: 'num' }, 'things to look at'),
                known && h('th', { scope: 'col', class: 'num' }, 'seconds'),
              ),
            ),
            h(
              'tbody',
              null,
              names.map((name, i) =>
                h(
                  'tr',
                  { class: i === own ? 'own' : '' },
                  h('td', null, name),
                  h(
                    'td',
                    { class: 'num' },
                    format(scores[i]),
                    deviations[i] !== null && h('span', { class: 'soft' }, ' ± ' + format(deviations[i])),
                  ),
                  h('td', { class: 'num' }, things[i] < 0 ? 'nobody can' : text(things[i])),
                  known && h('td', { class: 'num' }, text(seconds[i], 2)),
                ),
              ),
            ),
          ),
        ),
      ),
      'comparison',
      ['model', metric, 'deviation', 'things to look at', 'seconds'],
      () => names.map((name, i) => [name, scores[i], deviations[i], things[i] < 0 ? null : things[i], seconds[i]]),
    ),
  );
}

// Words of the page, for those who see one for the first time.
function guideSection(data) {
  const { noun } = data.features;
  const entries = [
    [
      'net effect',
      'What a change of one input does to the answer when all other inputs stay as they are. It says what the model does, not what would happen in the world: inputs that move together share what they say.',
    ],
    [
      'score',
      'Of the possible classes the one with the highest score is the answer; of two classes the second where its score is above 0. Scores are no probabilities.',
    ],
    [noun, `A number that the model makes of the inputs of a ${rowNoun(data)}, and that its answers rest on.`],
    ['use', `How much there is of a ${noun}: ${data.features.use_name}.`],
    data.features.separation_name && [
      'separation',
      `How well a ${noun} tells targets apart: ${data.features.separation_name}.`,
    ],
    ['weight', `What a ${noun} adds to an answer, per unit of it.`],
    ['margin', 'By how much the right answer beats the best other one; below 0 the answer is wrong.'],
    [
      'cross-validated',
      'Measured on rows that the fit had not seen: each part of the rows was left out once. ± is the standard deviation over the parts.',
    ],
    ['on the rows it was fitted to', 'Better than it will be on new rows; how much better nobody knows.'],
  ];
  return foldedSection(
    'guide',
    'How to read this page',
    '',
    h(
      'div',
      { class: 'panel' },
      h(
        'dl',
        { class: 'guide' },
        entries.filter(Boolean).map(([name, meaning]) => [h('dt', null, name), h('dd', null, meaning)]),
      ),
      data.documentation &&
        h(
          'p',
          null,
          h(
            'a',
            { href: data.documentation, rel: 'noopener noreferrer', target: '_blank' },
            'The documentation of regbayes',
          ),
        ),
    ),
  );
}

function build() {
  const data = JSON.parse(document.getElementById('data').textContent);
  themeButton(document.getElementById('theme'));
  const sections = [
    data.effects && effectsSection(data),
    featuresSection(data),
    data.comparison && comparisonSection(data),
    answersSection(data),
    data.tasks &&
      section(
        'tasks',
        'Tasks',
        `${plural(data.tasks.names.length, 'task')} that share the ${data.features.noun}s, each with weights of its own.`,
        tasksView(data),
      ),
    countSection(data),
    data.history && historySection(data),
    settingsSection(data),
    guideSection(data),
  ].filter(Boolean);
  const short = { worth: 'Worth it?', count: 'How many', guide: 'Guide' };
  document
    .getElementById('nav')
    .append(
      ...sections.map((node) =>
        h('a', { href: '#' + node.id }, short[node.id] ?? node.querySelector('h2').textContent),
      ),
    );
  document
    .getElementById('main')
    .append(
      overview(data),
      ...sections,
      h(
        'footer',
        null,
        'Written by regbayes. This page is one file: it loads nothing and sends nothing. ',
        h('a', { href: '#guide' }, 'How to read this page'),
        data.documentation && ' · ',
        data.documentation &&
          h('a', { href: data.documentation, rel: 'noopener noreferrer', target: '_blank' }, 'Documentation'),
      ),
    );
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
  document
    .getElementById('main')
    .replaceChildren(h('p', null, 'This page cannot be shown: its data are damaged. Write it again.'));
  console.error(error);
}
