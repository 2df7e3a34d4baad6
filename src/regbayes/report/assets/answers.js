// How right the model is: the confusion matrix, the most confused pairs, predicted against observed, the worst rows.

const MAX_TABLE = 24;
const MANY_CLASSES = 10;

function confusionView(data) {
  const { classes, counts } = data.confusion;
  const totals = counts.map((row) => row.reduce((a, b) => a + b, 0));
  const lead = 'A row of the table is a true class; its colour is the share of the class that gets each answer.';
  const file = [['class', ...classes], () => counts.map((row, i) => [classes[i], ...row])];
  if (classes.length > MAX_TABLE) {
    const shares = counts.map((row, i) => row.map((count, j) => ((i === j ? 1 : -1) * count) / (totals[i] || 1)));
    return withCsv(
      panel(
        'Confusion matrix',
        lead + ' Blue is right, orange wrong.',
        numberMap(shares, classes, classes, {
          limit: 1,
          label: 'Confusion matrix',
          rowNoun: 'class',
          columnNoun: 'taken for',
        }),
      ),
      'confusion matrix',
      ...file,
    );
  }
  const cells = [];
  const table = h(
    'table',
    { class: 'confusion' + (classes.length > MANY_CLASSES ? ' many' : '') },
    h('caption', { class: 'hidden-text' }, 'Confusion matrix: true classes down, answers across'),
    h(
      'thead',
      null,
      h(
        'tr',
        null,
        h('th', null, ''),
        classes.map((name) => h('th', { scope: 'col', title: name }, name)),
      ),
    ),
    h(
      'tbody',
      null,
      counts.map((row, i) =>
        h(
          'tr',
          null,
          h('th', { scope: 'row', title: classes[i] }, classes[i]),
          row.map((count, j) => {
            const cell = h(
              'td',
              { class: count ? '' : 'none', title: `${classes[i]} taken for ${classes[j]}: ${count} of ${totals[i]}` },
              count,
            );
            cells.push([cell, i === j, count / (totals[i] || 1), count]);
            return cell;
          }),
        ),
      ),
    ),
  );
  const draw = () => {
    const [ground, right, wrong] = [colour('sunken'), colour('accent'), colour('warm')];
    for (const [cell, correct, share, count] of cells) {
      const strength = count ? 0.12 + 0.88 * Math.min(1, correct ? share : 2.5 * share) : 0;
      cell.style.backgroundColor = `rgb(${mixed(ground, correct ? right : wrong, strength).join(' ')})`;
      cell.classList.toggle('pale', strength > 0.55);
    }
  };
  draw();
  drawn(table, draw);
  return withCsv(
    panel('Confusion matrix', lead + ' Answers are across.', h('div', { class: 'scroll' }, table)),
    'confusion matrix',
    ...file,
  );
}

function classTable(data) {
  const { classes, counts } = data.confusion;
  const rows = classes.map((name, i) => {
    const actual = counts[i].reduce((a, b) => a + b, 0);
    const said = counts.reduce((sum, row) => sum + row[i], 0);
    const hit = counts[i][i];
    const [precision, recall] = [said ? hit / said : null, actual ? hit / actual : null];
    return [name, actual, precision, recall, actual + said ? (2 * hit) / (actual + said) : null];
  });
  const heads = ['class', 'rows', 'precision', 'recall', 'F1'];
  return withCsv(
    panel(
      'By class',
      'Precision: how many answers are right. Recall: how many of the class are found.',
      sortableTable(heads, rows, 'Scores by class'),
    ),
    'scores by class',
    heads,
    () => rows,
  );
}

function pairsView(data, bytes) {
  const { classes, counts, pairs, pair_examples: examples } = data.confusion;
  if (!pairs.length) return panel('Where it errs', 'Nowhere, on these rows.');
  const confused = panel(
    'Most confused',
    'The errors that are made most often, with examples; click on one to see it',
    h(
      'ol',
      { class: 'pairs' },
      pairs.map(([truth, said], i) => {
        const total = counts[truth].reduce((a, b) => a + b, 0);
        return h(
          'li',
          null,
          h(
            'div',
            null,
            h('strong', null, classes[truth]),
            ' taken for ',
            h('strong', { class: 'wrong' }, classes[said]),
            h(
              'span',
              { class: 'soft' },
              ` · ${counts[truth][said]} of ${total} (${percent(counts[truth][said] / total)})`,
            ),
          ),
          h(
            'div',
            { class: 'row' },
            examples[i].map((example) =>
              data.examples.pictures
                ? h('div', null, rowLink(data, example, '', exampleThumb(data, bytes, example)))
                : h('span', { class: 'chip' }, rowLink(data, example)),
            ),
          ),
        );
      }),
    ),
  );
  return withCsv(confused, 'most confused', ['class', 'taken for', 'rows', 'of'], () =>
    pairs.map(([truth, said]) => [
      classes[truth],
      classes[said],
      counts[truth][said],
      counts[truth].reduce((a, b) => a + b, 0),
    ]),
  );
}

function worstView(data, bytes) {
  const { examples, notes, sizes, size_name: sizeName } = data.worst;
  if (!examples.length) return null;
  const { names, texts, input_names: inputNames, inputs } = data.examples;
  const [short, meaning] = sizeName ? sizeName.split(': ') : ['', ''];
  const format = sizes ? withSign(uniform(sizes)) : String;
  const size = (i) => (sizes ? ` · ${short} ${format(sizes[i])}` : '');
  const lead =
    data.worst.title + (sizeName ? `. ${sentence(short)}: ${meaning}.` : '.') + ' Click on one to see it whole.';
  const shown = inputNames.slice(0, 5);
  let content;
  if (data.examples.pictures) {
    content = h(
      'ol',
      { class: 'thumbs wide-thumbs' },
      examples.map((example, i) =>
        h(
          'li',
          null,
          rowLink(data, example, notes[i], exampleThumb(data, bytes, example)),
          h('div', { class: 'cap' }, h('div', null, names[example]), h('div', { class: 'soft' }, notes[i] + size(i))),
        ),
      ),
    );
  } else if (texts.some(Boolean)) {
    content = h(
      'ol',
      { class: 'texts' },
      examples.map((example, i) =>
        h(
          'li',
          null,
          h('div', { class: 'meta' }, rowLink(data, example, notes[i]), ' · ', notes[i] + size(i)),
          texts[example],
        ),
      ),
    );
  } else {
    const numbers = shown.map((_, j) => examples.every((example) => typeof inputs[example][j] !== 'string'));
    const formats = shown.map((_, j) =>
      numbers[j] ? uniform(examples.map((example) => inputs[example][j])) : cellText,
    );
    content = h(
      'div',
      { class: 'scroll' },
      h(
        'table',
        { class: 'grid-table' },
        h('caption', { class: 'hidden-text' }, 'Worst examples'),
        h(
          'thead',
          null,
          h(
            'tr',
            null,
            h('th', { scope: 'col' }, 'row'),
            h('th', { scope: 'col' }, 'what happened'),
            sizes && h('th', { scope: 'col', class: 'num' }, short),
            shown.map((name, j) =>
              h('th', { scope: 'col', class: 'input' + (numbers[j] ? ' num' : ''), title: name }, breakable(name)),
            ),
          ),
        ),
        h(
          'tbody',
          null,
          examples.map((example, i) =>
            h(
              'tr',
              null,
              h('td', { class: 'name' }, rowLink(data, example, notes[i])),
              h('td', { class: 'answer' }, notes[i]),
              sizes && h('td', { class: 'num' }, format(sizes[i])),
              shown.map((_, j) => h('td', { class: numbers[j] ? 'num' : 'name' }, formats[j](inputs[example][j]))),
            ),
          ),
        ),
      ),
    );
  }
  return withCsv(
    panel('Worst examples', lead, content),
    'worst examples',
    ['row', 'what happened', short || 'size', ...(texts.some(Boolean) ? ['text'] : []), ...inputNames],
    () =>
      examples.map((example, i) => [
        names[example],
        notes[i],
        sizes ? sizes[i] : null,
        ...(texts.some(Boolean) ? [texts[example]] : []),
        ...(inputs[example] ?? []),
      ]),
  );
}

// Of predictions with a probability of about so much, how many are right: a picture, and the same as numbers.
function reliabilityView({ probability, share, counts, note }) {
  const bins = probability
    .map((said, i) => {
      const guess = (share[i] * counts[i] + 1) / (counts[i] + 2); // not 0 or 1, so that few rows have an error, too
      return { said, right: share[i], count: counts[i], error: Math.sqrt((guess * (1 - guess)) / counts[i]) };
    })
    .filter(({ count }) => count > 0);
  const most = Math.max(...bins.map(({ count }) => count), 1);
  // Tenths from the smallest value on: answers to yes or no are never below one half.
  const low = Math.floor(10 * Math.max(0, Math.min(...bins.flatMap(({ said, right, error }) => [said, right - error])))) / 10;
  const node = chart('Share of right predictions against their probability', (width) => {
    const height = Math.min(width, 420) * 0.8;
    const { x, y, lines } = axes(width, height, [low, 1], [low, 1], {
      xLabel: 'probability of the answer',
      yLabel: 'share that is right',
    });
    return [
      height,
      [
        lines,
        s('line', { class: 'zero', x1: x(low), y1: y(low), x2: x(1), y2: y(1), 'stroke-dasharray': '5 4' }),
        bins.map(({ said, right, count, error }) => [
          s('line', {
            class: 'spread',
            x1: x(said),
            x2: x(said),
            y1: y(Math.max(low, right - error)),
            y2: y(Math.min(1, right + error)),
          }),
          s(
            'circle',
            { class: 'bin', cx: x(said), cy: y(right), r: 3 + 6 * Math.sqrt(count / most) },
            s('title', null, `${percent(said)} probable: ${percent(right)} right, of ${count}`),
          ),
        ]),
      ],
    ];
  });
  const rows = bins.map(({ said, right, count }) => [said, right, count]);
  return withCsv(
    panel(
      'How far probabilities hold',
      note,
      h(
        'div',
        { class: 'reliability' },
        h('div', null, node),
        h(
          'div',
          null,
          h(
            'p',
            { class: 'soft' },
            'A point stands for the answers of about one probability: a large one for many, with a standard error to ' +
              'either side. On the dashed line a probability means what it says; below it the model is too sure.',
          ),
          sortableTable(
            ['probability', 'right', 'answers'],
            rows.map(([said, ...rest]) => [said.toFixed(3), ...rest]),
            'Probabilities and shares of right answers',
          ),
        ),
      ),
    ),
    'reliability',
    ['probability', 'share that is right', 'predictions'],
    () => rows,
  );
}

function regressionView(data) {
  const { tasks, task_names: names, observed, predicted, n_all: all } = data.regression;
  const box = h('div');
  const show = (task) => {
    const mine = tasks
      .map((t, i) => [t, i])
      .filter(([t]) => t === task)
      .map(([, i]) => i);
    box.replaceChildren(
      scatter(
        mine.map((i) => observed[i]),
        mine.map((i) => predicted[i]),
        'Predicted against observed targets',
      ),
    );
  };
  show(tasks[0] ?? 0);
  const choice =
    names.length > 1 &&
    h(
      'p',
      null,
      h(
        'label',
        null,
        'target ',
        h(
          'select',
          { class: 'choice', change: (event) => show(Number(event.target.value)) },
          names.map((name, i) => h('option', { value: i }, name)),
        ),
      ),
    );
  const some =
    observed.length < all ? ` ${text(observed.length)} of ${text(all)} targets, evenly over their range.` : '';
  const heads = names.length > 1 ? ['target', 'observed', 'predicted'] : ['observed', 'predicted'];
  return withCsv(
    panel('Predicted against observed', 'On the dashed line both are the same.' + some, choice, box),
    'predicted against observed',
    heads,
    () => observed.map((value, i) => [...(names.length > 1 ? [names[tasks[i]]] : []), value, predicted[i]]),
  );
}

// Columns are sorted by a click on their heads, best first and then worst first.
function sortableTable(heads, rows, label) {
  const body = h('tbody');
  let [column, descending] = [null, true];
  const headCells = heads.map((name, i) =>
    h('th', { class: i ? 'num' : '', scope: 'col' }, h('button', { type: 'button', click: () => sort(i) }, name)),
  );
  const formats = heads.map((_, i) => (i ? uniform(rows.map((row) => row[i])) : String));
  const fillBody = (sorted) =>
    body.replaceChildren(
      ...sorted.map((row) =>
        h(
          'tr',
          null,
          row.map((value, i) => h('td', { class: i ? 'num' : 'name', title: i ? null : value }, formats[i](value))),
        ),
      ),
    );
  const sort = (i) => {
    descending = column === i ? !descending : i > 0;
    column = i;
    const value = (row) => row[i] ?? -Infinity;
    const sorted = [...rows].sort((a, b) =>
      i ? value(a) - value(b) : String(a[0]).localeCompare(String(b[0]), 'en', { numeric: true }),
    );
    headCells.forEach((cell, j) =>
      j === i
        ? cell.setAttribute('aria-sort', descending ? 'descending' : 'ascending')
        : cell.removeAttribute('aria-sort'),
    );
    fillBody(descending ? sorted.reverse() : sorted);
  };
  fillBody(rows);
  return h(
    'div',
    { class: 'scroll tall', tabindex: rows.length > 12 ? 0 : null },
    h(
      'table',
      { class: 'grid-table' },
      h('caption', { class: 'hidden-text' }, label),
      h('thead', null, h('tr', null, headCells)),
      body,
    ),
  );
}
