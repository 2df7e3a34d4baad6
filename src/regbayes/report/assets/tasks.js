// Several tasks: scores of each, their weights for the features, and which are related.

const N_RELATED = 6;

function tasksView(data) {
  const { names, column_names: columns, columns: values, shown, relations } = data.tasks;
  const parts = [panel('By task', 'Scores of each task; click on a head to sort',
    sortableTable(['task', ...columns], names.map((name, i) => [name, ...values[i]]), 'Scores by task'))];
  if (relations.length) parts.push(relationsView(names, shown, relations));
  return h('div', { class: 'stack' }, weightsMap(data), h('div', { class: 'columns' }, parts));
}

function weightsMap(data) {
  const { output_names: outputs, weights, number } = data.features;
  if (!outputs.length || !number.length) return null;
  const table = outputs.map((_, o) => number.map((_, f) => weights[f][o]));
  const limit = Math.max(...table.flat().map(Math.abs), 1e-12);
  return panel('Weights of the features', 'Rows are tasks, columns are features, the most used first. Blue speaks for, orange against.',
    numberMap(table, outputs, number, { limit, label: 'Weights of the features in the tasks', rowNoun: 'task', columnNoun: 'feature' }));
}

function relationsView(names, shown, relations) {
  const pairs = [];
  for (let i = 0; i < shown.length; i++) for (let j = 0; j < i; j++) pairs.push([relations[i][j], names[shown[j]], names[shown[i]]]);
  pairs.sort((a, b) => b[0] - a[0]);
  const line = ([value, one, other]) => h('tr', null, h('td', null, one), h('td', null, other), h('td', { class: 'num' }, signed(value)));
  const listed = pairs.length > 2 * N_RELATED ? [...pairs.slice(0, N_RELATED), ...pairs.slice(-N_RELATED)] : pairs;
  const some = shown.length < names.length ? ` The ${shown.length} tasks with the most targets.` : '';
  return panel('Related tasks', 'Correlation of what the features say about the rows for two tasks, with related tasks side by side.' + some,
    numberMap(relations, shown.map((t) => names[t]), shown.map((t) => names[t]), { limit: 1, label: 'Correlations of the tasks', rowNoun: 'task', columnNoun: 'task' }),
    h('div', { class: 'scroll' }, h('table', { class: 'grid-table' }, h('caption', { class: 'hidden-text' }, 'The most and the least alike pairs of tasks'),
      h('thead', null, h('tr', null, h('th', null, 'most alike, and least'), h('th', null, ''), h('th', { class: 'num' }, 'correlation'))), h('tbody', null, listed.map(line)))));
}
