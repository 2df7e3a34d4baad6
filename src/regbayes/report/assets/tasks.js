// Several tasks: scores of each, their weights for the features, and which are related.

const N_RELATED = 6;

function tasksView(data) {
  const { names, column_names: columns, columns: values, relations } = data.tasks;
  const rows = names.map((name, i) => [name, ...values[i]]);
  const scores = withCsv(
    panel(
      'By task',
      'Scores of each task; click on a head to sort',
      sortableTable(['task', ...columns], rows, 'Scores by task'),
    ),
    'scores by task',
    ['task', ...columns],
    () => rows,
  );
  return h(
    'div',
    { class: 'stack' },
    scores,
    weightsMap(data),
    relations.length > 0 && h('div', { class: 'columns' }, relationsMap(data.tasks), pairsOfTasks(data.tasks)),
  );
}

function weightsMap(data) {
  const { output_names: outputs, weights, number, noun } = data.features;
  if (!outputs.length || !number.length) return null;
  const table = outputs.map((_, o) => number.map((_, f) => weights[f][o]));
  const limit = largest(table.flat());
  return withCsv(
    panel(
      `Weights of the ${noun}s`,
      `Rows are tasks, columns are ${noun}s, the most used first. Blue speaks for, orange against.`,
      numberMap(table, outputs, number, {
        limit,
        label: `Weights of the ${noun}s in the tasks`,
        rowNoun: 'task',
        columnNoun: noun,
      }),
    ),
    `weights of ${noun}s`,
    ['task', ...number.map((k) => `${noun} ${k}`)],
    () => table.map((line, o) => [outputs[o], ...line]),
  );
}

function relationsMap({ names, shown, relations, relation_name: what }) {
  const some = shown.length < names.length ? ` The ${shown.length} tasks with the most targets.` : '';
  const ordered = shown.map((task) => names[task]);
  return withCsv(
    panel(
      'Related tasks',
      sentence(what) + '. Related tasks are side by side; blue is alike, orange opposed.' + some,
      numberMap(relations, ordered, ordered, {
        limit: 1,
        label: 'Correlations of the tasks',
        rowNoun: 'task',
        columnNoun: 'task',
      }),
    ),
    'related tasks',
    ['task', ...ordered],
    () => relations.map((line, i) => [ordered[i], ...line]),
  );
}

function pairsOfTasks({ names, shown, relations }) {
  const pairs = [];
  for (let i = 0; i < shown.length; i++)
    for (let j = 0; j < i; j++) pairs.push([relations[i][j], names[shown[j]], names[shown[i]]]);
  pairs.sort((a, b) => b[0] - a[0]);
  const format = uniform(pairs.map(([value]) => value));
  const line = ([value, one, other]) =>
    h(
      'tr',
      null,
      h('td', { class: 'name' }, one),
      h('td', { class: 'name' }, other),
      h('td', { class: 'num' }, withSign(format)(value)),
    );
  const listed = pairs.length > 2 * N_RELATED ? [...pairs.slice(0, N_RELATED), ...pairs.slice(-N_RELATED)] : pairs;
  const listedPanel = panel(
    'Most and least alike',
    'Pairs of tasks by their correlation',
    h(
      'div',
      { class: 'scroll' },
      h(
        'table',
        { class: 'grid-table' },
        h(
          'thead',
          null,
          h('tr', null, h('th', null, 'task'), h('th', null, 'and task'), h('th', { class: 'num' }, 'correlation')),
        ),
        h('tbody', null, listed.map(line)),
      ),
    ),
  );
  return withCsv(listedPanel, 'pairs of tasks', ['task', 'and task', 'correlation'], () =>
    pairs.map(([value, one, other]) => [one, other, value]),
  );
}
