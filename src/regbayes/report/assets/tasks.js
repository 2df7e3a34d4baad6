// Several tasks: scores of each, their weights for the features, and which are related.

const N_RELATED = 6;

function tasksView(data) {
  const { names, column_names: columns, columns: values, relations } = data.tasks;
  const heads = ['task', ...columns];
  const rows = names.map((name, i) => [name, ...values[i]]);
  const scores = panel(
    'By task',
    'Scores of each task; click on a head to sort',
    { name: 'scores by task', heads, rows: () => rows },
    table('Scores by task', heads, rows, { sortable: true }),
  );
  const related =
    relations.length > 0 && h('div', { class: 'columns' }, relationsMap(data.tasks), pairsOfTasks(data.tasks));
  return h('div', { class: 'stack' }, scores, weightsMap(data), related);
}

function weightsMap(data) {
  const { output_names: outputs, weights, number, noun } = data.features;
  if (!outputs.length || !number.length) return null;
  const values = outputs.map((_, o) => number.map((_, f) => weights[f][o]));
  const options = {
    limit: largest(values.flat()),
    label: `Weights of the ${noun}s in the tasks`,
    rowNoun: 'task',
    columnNoun: noun,
  };
  return panel(
    `Weights of the ${noun}s`,
    `Rows are tasks, columns are ${noun}s, the most used first. Blue is a positive weight, orange a negative one.`,
    {
      name: `weights of ${noun}s`,
      heads: ['task', ...number.map((k) => `${noun} ${k}`)],
      rows: () => values.map((line, o) => [outputs[o], ...line]),
    },
    numberMap(values, outputs, number, options),
  );
}

function relationsMap({ names, shown, relations, relation_name: what }) {
  const some = shown.length < names.length ? ` The ${shown.length} tasks with the most targets.` : '';
  const ordered = shown.map((task) => names[task]);
  const options = { limit: 1, label: 'Correlations of the tasks', rowNoun: 'task', columnNoun: 'task' };
  return panel(
    'Related tasks',
    sentence(what) + '. Related tasks are side by side; blue is similar, orange opposed.' + some,
    {
      name: 'related tasks',
      heads: ['task', ...ordered],
      rows: () => relations.map((line, i) => [ordered[i], ...line]),
    },
    numberMap(relations, ordered, ordered, options),
  );
}

function pairsOfTasks({ names, shown, relations }) {
  const pairs = relations.flatMap((line, i) =>
    line.slice(0, i).map((value, j) => [names[shown[j]], names[shown[i]], value]),
  );
  pairs.sort((a, b) => b[2] - a[2]);
  const ends = [...pairs.slice(0, N_RELATED), ...pairs.slice(-N_RELATED)];
  const heads = ['task', 'and task', 'correlation'];
  return panel(
    'Most and least similar',
    'Pairs of tasks by their correlation',
    { name: 'pairs of tasks', heads, rows: () => pairs },
    table('Pairs of tasks', heads, pairs.length > 2 * N_RELATED ? ends : pairs),
  );
}
