// How right the model is: the confusion matrix, the most confused pairs, predicted against observed, the worst samples.

const MAX_TABLE = 24;
const MANY_CLASSES = 10;

function confusionView({ classes, counts }) {
  const sums = counts.map(total);
  const shares = counts.map((row, i) => row.map((count) => count / (sums[i] || 1)));
  const lead = 'A row of the table is a true class; its color is the share of the class that gets each prediction.';
  const file = {
    name: 'confusion matrix',
    heads: ['class', ...classes],
    rows: () => counts.map((row, i) => [classes[i], ...row]),
  };
  if (classes.length > MAX_TABLE) {
    const signed = shares.map((row, i) => row.map((share, j) => (i === j ? share : -share)));
    const options = { limit: 1, label: 'Confusion matrix', rowNoun: 'class', columnNoun: 'predicted as' };
    const map = numberMap(signed, classes, classes, options);
    return panel('Confusion matrix', lead + ' Blue is right, orange wrong.', file, map);
  }
  const cells = [];
  const cell = (count, i, j) => {
    const words = `${classes[i]} predicted as ${classes[j]}: ${count} of ${sums[i]}`;
    const node = h('td', { class: count ? '' : 'none', title: words }, count);
    cells.push([node, i === j, shares[i][j]]);
    return node;
  };
  const heads = classes.map((name) => h('th', { scope: 'col', title: name }, name));
  const line = (row, i) => {
    const head = h('th', { scope: 'row', title: classes[i] }, classes[i]);
    return h(
      'tr',
      null,
      head,
      row.map((count, j) => cell(count, i, j)),
    );
  };
  const grid = h(
    'table',
    { class: 'confusion' + (classes.length > MANY_CLASSES ? ' many' : '') },
    h('caption', { class: 'hidden-text' }, 'Confusion matrix: true classes down, predictions across'),
    h('thead', null, h('tr', null, h('th'), heads)),
    h('tbody', null, counts.map(line)),
  );
  const draw = () => {
    const [ground, right, wrong] = [color('sunken'), color('accent'), color('warm')];
    for (const [node, correct, share] of cells) {
      const strength = share ? 0.12 + 0.88 * Math.min(1, correct ? share : 2.5 * share) : 0;
      node.style.backgroundColor = `rgb(${mixed(ground, correct ? right : wrong, strength).join(' ')})`;
      node.classList.toggle('pale', strength > 0.55);
    }
  };
  draw();
  drawn(grid, draw);
  return panel('Confusion matrix', lead + ' Predictions are across.', file, h('div', { class: 'scroll' }, grid));
}

function classTable({ classes, counts }) {
  const rows = classes.map((name, i) => {
    const [actual, said, hit] = [total(counts[i]), total(counts.map((row) => row[i])), counts[i][i]];
    const f1 = actual + said ? (2 * hit) / (actual + said) : null;
    return [name, actual, said ? hit / said : null, actual ? hit / actual : null, f1];
  });
  const heads = ['class', 'rows', 'precision', 'recall', 'F1'];
  return panel(
    'By class',
    'Precision: how many predictions of the class are right. Recall: how many of the class are found.',
    { name: 'scores by class', heads, rows: () => rows },
    table('Scores by class', heads, rows, { sortable: true }),
  );
}

function pairsView(data, bytes) {
  const { classes, counts, pairs, pair_examples: examples } = data.confusion;
  if (!pairs.length) return panel('Most confused', 'No row of these is predicted wrongly.');
  const link = (example) =>
    data.examples.pictures
      ? h('div', null, rowLink(data, example, '', exampleThumb(data, bytes, example)))
      : h('span', { class: 'chip' }, rowLink(data, example));
  const item = ([truth, said], i) => {
    const [count, all] = [counts[truth][said], total(counts[truth])];
    const names = [h('strong', null, classes[truth]), ' predicted as ', h('strong', { class: 'wrong' }, classes[said])];
    const share = h('span', { class: 'soft' }, ` · ${count} of ${all} (${percent(count / all)})`);
    return h('li', null, h('div', null, names, share), h('div', { class: 'row' }, examples[i].map(link)));
  };
  const rows = () =>
    pairs.map(([truth, said]) => [classes[truth], classes[said], counts[truth][said], total(counts[truth])]);
  return panel(
    'Most confused',
    'The errors that are made most often, with examples; click on one to see it',
    { name: 'most confused', heads: ['class', 'predicted as', 'rows', 'of'], rows },
    h('ol', { class: 'pairs' }, pairs.map(item)),
  );
}

function worstView(data, bytes) {
  const { title, examples, notes, sizes, size_name: sizeName } = data.worst;
  if (!examples.length) return null;
  const { names, texts, input_names: inputNames, inputs } = data.examples;
  const [short, meaning] = sizeName.split(': ');
  const format = sizes ? withSign(uniform(sizes)) : String;
  const note = (i) => notes[i] + (sizes ? ` · ${short} ${format(sizes[i])}` : '');
  const columns = {
    heads: ['what happened', ...(sizes ? [short] : []), ...inputNames.slice(0, 5)],
    cells: (example, i) => [notes[i], ...(sizes ? [sizes[i]] : []), ...(inputs[example] ?? []).slice(0, 5)],
    note: (i) => notes[i],
  };
  const hasTexts = texts.some(Boolean);
  const file = {
    name: 'worst examples',
    heads: ['row', 'what happened', short || 'size', ...(hasTexts ? ['text'] : []), ...inputNames],
    rows: () =>
      examples.map((example, i) => {
        const more = [...(hasTexts ? [texts[example]] : []), ...(inputs[example] ?? [])];
        return [names[example], notes[i], sizes ? sizes[i] : null, ...more];
      }),
  };
  const lead = `${title}.${sizeName ? ` ${sentence(short)}: ${meaning}.` : ''} Click on one to see it whole.`;
  const list = exampleList(data, bytes, examples, (example, i) => [names[example], note(i)], columns);
  return panel('Worst examples', lead, file, list);
}

// Bins of predictions by their probability, and how many of each are right: a picture, and the same as numbers.
function reliabilityView({ probability, share, counts, note }) {
  const bins = probability
    .map((said, i) => {
      const guess = (share[i] * counts[i] + 1) / (counts[i] + 2); // not 0 or 1, so that few rows have an error, too
      return { said, right: share[i], count: counts[i], error: Math.sqrt((guess * (1 - guess)) / counts[i]) };
    })
    .filter(({ count }) => count > 0);
  const most = Math.max(...bins.map(({ count }) => count), 1);
  // Tenths from the smallest value on: the larger of two probabilities is never below one half.
  const ends = bins.flatMap(({ said, right, error }) => [said, right - error]);
  const low = Math.floor(10 * Math.max(0, Math.min(...ends))) / 10;
  const picture = chart('Share of right predictions against their probability', (width) => {
    const height = Math.min(width, 420) * 0.8;
    const options = { xLabel: 'probability of the prediction', yLabel: 'share that is right' };
    const { x, y, lines } = axes(width, height, [low, 1], [low, 1], options);
    const point = ({ said, right, count, error }) => {
      const words = s('title', null, `${percent(said)} probable: ${percent(right)} right, of ${count}`);
      const [down, up] = [Math.max(low, right - error), Math.min(1, right + error)];
      const disk = { class: 'bin', cx: x(said), cy: y(right), r: 3 + 6 * Math.sqrt(count / most) };
      return [segment(x(said), y(down), x(said), y(up), { class: 'spread' }), s('circle', disk, words)];
    };
    const diagonal = segment(x(low), y(low), x(1), y(1), { class: 'zero', 'stroke-dasharray': '5 4' });
    return [height, [lines, diagonal, bins.map(point)]];
  });
  const about = `A point stands for predictions of about one probability: a large one for many, with a standard error to
    either side. On the dashed line a probability means what it says; below it the model is too sure.`;
  const rows = bins.map(({ said, right, count }) => [said, right, count]);
  const heads = ['probability', 'right', 'predictions'];
  const numbers = table('Probabilities and shares of right predictions', heads, rows, { sortable: true });
  return panel(
    'How far probabilities hold',
    note,
    { name: 'reliability', heads: ['probability', 'share that is right', 'predictions'], rows: () => rows },
    h(
      'div',
      { class: 'reliability' },
      h('div', null, picture),
      h('div', null, h('p', { class: 'soft' }, about), numbers),
    ),
  );
}

function regressionView(data) {
  const { tasks, task_names: names, observed, predicted, n_all: all } = data.regression;
  const several = names.length > 1;
  const box = h('div');
  const show = (task) => {
    const mine = observed.map((_, i) => i).filter((i) => tasks[i] === task);
    const [x, y] = [observed, predicted].map((values) => mine.map((i) => values[i]));
    box.replaceChildren(scatter(x, y, 'Predicted against observed targets'));
  };
  show(tasks[0] ?? 0);
  const some =
    observed.length < all ? ` ${text(observed.length)} of ${text(all)} targets, evenly over their range.` : '';
  const file = {
    name: 'predicted against observed',
    heads: [...(several ? ['target'] : []), 'observed', 'predicted'],
    rows: () => observed.map((value, i) => [...(several ? [names[tasks[i]]] : []), value, predicted[i]]),
  };
  const lead = 'On the dashed line both are the same.' + some;
  return panel('Predicted against observed', lead, file, several && chooser('target', names, tasks[0] ?? 0, show), box);
}
