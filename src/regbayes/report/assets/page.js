// The page: sections in order, the theme, the way about.

const THEMES = ['auto', 'light', 'dark'];

function stored(value) {
  try { // a file opened from disk may have no storage
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
  const tiles = [...model.scores, ['features in use', null, `of ${data.features.all_use.length} that there could be`, text(inUse)]];
  return h('div', null,
    h('h1', null, data.title),
    h('p', { class: 'soft' }, [model.name, `${text(model.n_rows)} ${model.data_name}`, plural(model.n_inputs, 'input')].join(' · ')),
    h('dl', { class: 'tiles' }, tiles.map(([name, value, note, shown]) =>
      h('div', { class: 'tile' }, h('dt', null, name), h('dd', { class: 'value' }, shown ?? text(value)), note && h('dd', { class: 'note' }, note)))));
}

function featuresSection(data) {
  const { features } = data;
  const what = features.probabilities
    ? 'A feature of a row is a number between 0, the row does not have it, and 1, it does.'
    : 'A feature of a row is a number; all answers are weighted sums of the features.';
  const keys = ' Choose one by a click or with the arrow keys.';
  if (!features.number.length) return section('features', 'Features', 'No feature is in use: none tells the rows apart.');
  return section('features', 'Features', what + keys, new FeatureExplorer(data).view());
}

function answersSection(data) {
  const bytes = data.examples.pictures && bytesOf(data.examples.pictures, false);
  const parts = [];
  if (data.confusion) {
    parts.push(h('div', { class: 'columns' }, h('div', { class: 'stack' }, confusionView(data), classTable(data)), pairsView(data, bytes)));
  }
  if (data.regression) parts.push(regressionView(data));
  if (data.worst) parts.push(worstView(data, bytes));
  if (!parts.length) return null;
  const title = data.regression ? 'Predictions' : 'Where it errs';
  const lead = data.prediction_note || `Predictions of the fitted model for the ${text(data.model.n_rows)} ${data.model.data_name}. On rows that it was fitted to they are better than on new ones.`;
  return section('errors', title, lead, h('div', { class: 'stack' }, parts));
}

function countSection(data) {
  const { all_use: use, all_in_use: inUse, use_name: name, count_note: verdict } = data.features;
  const count = inUse.filter(Boolean).length;
  return section('count', 'How many features', verdict, h('div', { class: 'panel' }, h('p', { class: 'soft small' }, sentence(name)),
    h('div', null, useChart(use, inUse, `Use of all features: ${count} of ${use.length} are in use`))));
}

function courseSection(data) {
  const { course } = data;
  const hidden = new Set();
  const series = [...course.term_names.map((name, i) => ({ name, values: course.terms[i], colour: `var(--${SERIES[i % SERIES.length]})`, width: 1.6 })),
    { name: 'objective', values: course.objective, colour: 'var(--text)', width: 2.4 }];
  const readout = h('p', { class: 'readout' }, '');
  const box = h('div');
  const tell = (i) => {
    const parts = series.filter(({ name }) => !hidden.has(name)).map(({ name, values }) => `${name} ${text(values[i], 5)}`);
    readout.textContent = `iteration ${course.iterations[i]}: ` + parts.join(', ');
  };
  const lines = () => chart('The objective and its terms over the iterations', (width) => {
    const seen = series.filter(({ name }) => !hidden.has(name)).map((one) => ({ ...one, change: one.values.map((value) => (value === null || one.values[0] === null ? null : value - one.values[0])) }));
    const finite = seen.flatMap(({ change }) => change).filter((value) => value !== null);
    const [low, high] = [Math.min(0, ...finite), Math.max(0, ...finite)];
    const span = [course.iterations[0], course.iterations.at(-1)];
    const { x, y, box: frame, lines: grid } = axes(width, 320, span, [low, high === low ? low + 1 : high], { xLabel: 'iteration', yLabel: 'change since the start' });
    const cursor = s('line', { class: 'zero', y1: frame.top, y2: frame.bottom, opacity: 0 });
    const follow = (event) => {
      const bounds = cover.getBoundingClientRect();
      const at = span[0] + (span[1] - span[0]) * (event.clientX - bounds.left) / (bounds.width || 1);
      const i = course.iterations.reduce((best, value, j) => (Math.abs(value - at) < Math.abs(course.iterations[best] - at) ? j : best), 0);
      cursor.setAttribute('x1', x(course.iterations[i]));
      cursor.setAttribute('x2', x(course.iterations[i]));
      cursor.setAttribute('opacity', 1);
      tell(i);
    };
    const cover = s('rect', { x: frame.left, y: frame.top, width: frame.right - frame.left, height: frame.bottom - frame.top, fill: 'transparent', pointermove: follow, pointerdown: follow });
    const paths = seen.map(({ change, colour: stroke, width: thick }) => s('polyline', { fill: 'none', stroke, 'stroke-width': thick, 'stroke-linejoin': 'round',
      points: change.map((value, i) => (value === null ? '' : `${x(course.iterations[i])},${y(value)}`)).join(' ') }));
    return [320, [grid, s('line', { class: 'zero', x1: frame.left, x2: frame.right, y1: y(0), y2: y(0) }), paths, cursor, cover]];
  });
  const legend = h('div', { class: 'legend' }, series.map(({ name, colour: stroke }) => h('button', { type: 'button', 'aria-pressed': 'true', click: (event) => {
    if (!hidden.delete(name)) hidden.add(name);
    event.currentTarget.setAttribute('aria-pressed', String(!hidden.has(name)));
    box.replaceChildren(lines());
  } }, h('i', { style: { background: stroke } }), name)));
  box.append(lines());
  tell(course.iterations.length - 1);
  const rises = course.n_rises ? `It rose ${course.n_rises} time${course.n_rises === 1 ? '' : 's'}, by ${text(course.largest_rise)} at most.` : 'It never rose.';
  return section('course', 'Convergence', `${plural(course.n_iter, 'iteration')} in ${text(course.seconds, 2)} s. The objective is the sum of its terms, and the fit makes it small. ${rises}`,
    h('div', { class: 'panel' }, legend, box, readout));
}

function settingsSection(data) {
  const { settings, facts } = data.model;
  return section('settings', 'Settings', 'Parameters that differ from their defaults are in colour.', h('div', { class: 'stack' },
    h('div', { class: 'panel' }, h('dl', { class: 'settings' }, settings.map(([name, value, changed]) => h('div', { class: changed ? 'changed' : '' }, h('dt', null, name), h('dd', null, value))))),
    panel('What the fit found', '', h('dl', { class: 'settings' }, facts.map(([name, value]) => h('div', null, h('dt', null, name), h('dd', null, value)))))));
}

function build() {
  const data = JSON.parse(document.getElementById('data').textContent);
  themeButton(document.getElementById('theme'));
  const sections = [featuresSection(data), answersSection(data), data.tasks && section('tasks', 'Tasks', `${plural(data.tasks.names.length, 'task')} that share the features, each with weights of its own.`, tasksView(data)),
    countSection(data), data.course && courseSection(data), settingsSection(data)].filter(Boolean);
  document.getElementById('nav').append(...sections.map((node) => h('a', { href: '#' + node.id }, node.querySelector('h2').textContent)));
  document.getElementById('main').append(overview(data), ...sections,
    h('footer', null, 'Written by regbayes. This page is one file: it loads nothing and sends nothing.'));
}

build();
