// Net effects: what each input does to the answer of the whole model, in the units of the input.

const FEW_EFFECTS = 20;

class EffectsView {
  constructor(data) {
    this.data = data;
    this.effects = data.effects;
    this.output = 0;
    this.chosen = 0;
  }

  get words() {
    return this.effects.kinds[0] === 'word';
  }

  get several() {
    return this.effects.outputs.length > 1;
  }

  // Whether outputs are different targets, rather than one target of several tasks.
  get ownUnits() {
    return Boolean(this.data.regression?.task_names.length);
  }

  get called() {
    const { answer } = this.effects;
    return answer === 'score' ? 'the score' : answer === 'target' ? 'the target' : answer;
  }

  // What an effect is an effect on.
  get what() {
    const { answer, outputs, output_title: title } = this.effects;
    if (answer !== 'score' && !this.several) return this.called;
    if (answer !== 'score') return this.ownUnits ? outputs[this.output] : `${this.called} in ${outputs[this.output]}`;
    return 'the score of ' + (title === 'class' ? 'class ' : '') + outputs[this.output];
  }

  lead() {
    const { linear, answer, n_rows: n, n_inputs: all, names } = this.effects;
    const by = this.effects.direct.length ? 'through features and by direct weights' : 'through all features';
    const whole = `It is the net effect, ${by}; all other inputs stay as they are.`;
    const score =
      answer !== 'score'
        ? ''
        : this.several
          ? ' A score speaks for its class or label: the higher, the likelier it is the answer.'
          : ` The answer is ${this.effects.outputs[0]} where the score is above 0.`;
    const out = this.effects.left_out;
    const listed =
      names.length + out.length < all
        ? ` ${text(names.length)} of ${text(all)} ${this.words ? 'words' : 'inputs'} are listed.`
        : '';
    const left = out.length
      ? ` Not compared, because nearly every row has a value of its own: ${out.slice(0, 5).join(', ')}${out.length > 5 ? ' and more' : ''}.`
      : '';
    const some = listed + left;
    if (this.words)
      return `What one more occurrence of a word does to ${this.called}, on average over ${plural(n, 'document')}.${score}${some}`;
    if (linear)
      return `This model is linear in its inputs: a step of an input changes ${this.called} by the same amount in every row, and here is how much. ${whole}${score}${some}`;
    return `How ${this.called} changes with each input, on average over ${plural(n, 'row')}; the model is not linear, so single rows differ${this.effects.pictures ? '' : ', and curves show where'}. ${whole}${score}${some}`;
  }

  // Lines of the list: a number is one, a category one for each value that is compared.
  lines() {
    const { names, kinds, sizes, slopes, categories, changes } = this.effects;
    const o = this.output;
    const order = names.map((_, i) => i).sort((a, b) => Math.abs(sizes[b][o]) - Math.abs(sizes[a][o]) || a - b);
    return order.flatMap((i) => {
      if (kinds[i] === 'word') return [{ i, label: names[i], value: slopes[i][o], note: '' }];
      const found = kinds[i] === 'number' ? [{ i, label: names[i], value: sizes[i][o], unit: slopes[i][o] }] : [];
      const compared = categories[i].slice(1).map((name, c) => ({
        i,
        label: `${names[i]}: ${name}`,
        value: changes[i][c][o],
        instead: categories[i][0],
      }));
      if (kinds[i] === 'category') compared.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
      return [...found, ...compared];
    });
  }

  view() {
    this.list = h('div', { class: 'effect-list' });
    this.detail = h('div', {
      class: 'panel effect-detail',
      role: 'region',
      'aria-label': 'The chosen input',
      'aria-live': 'polite',
    });
    if (this.effects.pictures) return this.pictures();
    this.fill();
    const panelNode = panel(this.words ? 'One word more' : 'One step of each input', '', this.chooser(), this.list);
    this.caption = panelNode.querySelector('p');
    this.tell();
    withCsv(panelNode, 'net effects', ...this.csv());
    return h(
      'div',
      { class: 'stack' },
      this.words ? panelNode : h('div', { class: 'effects' }, panelNode, this.detail),
      this.several && this.effects.outputs.length <= 60 && this.map(),
    );
  }

  tell() {
    this.caption.textContent = this.words
      ? `The change of ${this.what}`
      : `The change of ${this.what}: of numbers when they rise by one standard deviation, of categories in place of the most frequent one`;
  }

  chooser() {
    if (!this.several) return null;
    const { outputs, output_title: title } = this.effects;
    return h(
      'p',
      { class: 'chooser' },
      h(
        'label',
        null,
        title + ' ',
        h(
          'select',
          {
            class: 'choice',
            change: (event) => {
              this.output = Number(event.target.value);
              this.fill();
              this.tell();
            },
          },
          outputs.map((name, i) => h('option', { value: i }, name)),
        ),
      ),
    );
  }

  fill() {
    const lines = this.lines();
    const limit = largest(lines.map((line) => line.value));
    const format = withSign(uniform(lines.map((line) => line.value)));
    const { deviations } = this.effects;
    const node = (line) => {
      const width = (50 * Math.abs(line.value)) / limit;
      const sub =
        line.instead !== undefined
          ? `instead of ${line.instead}`
          : line.unit !== undefined
            ? `one sd is ${text(deviations[line.i])}`
            : '';
      return h(
        this.words ? 'div' : 'button',
        {
          type: this.words ? null : 'button',
          class: 'effect',
          'data-input': line.i,
          'aria-pressed': this.words ? null : 'false',
          click: this.words ? null : () => this.choose(line.i),
        },
        h('span', { class: 'effect-name', title: line.label }, breakable(line.label)),
        h(
          'span',
          { class: 'track', 'aria-hidden': true },
          h('u', { style: { left: '50%' } }),
          h('i', {
            class: line.value < 0 ? 'minus' : 'plus',
            style: { left: (line.value < 0 ? 50 - width : 50) + '%', width: Math.max(0.4, width) + '%' },
          }),
        ),
        h('span', { class: 'figure' }, format(line.value)),
        sub && h('span', { class: 'effect-note' }, sub),
      );
    };
    const shown = lines.slice(0, FEW_EFFECTS).map(node);
    this.list.replaceChildren(...shown);
    if (lines.length > FEW_EFFECTS) {
      const more = h(
        'button',
        {
          type: 'button',
          class: 'more',
          click: () => {
            more.remove();
            this.list.append(...lines.slice(FEW_EFFECTS).map(node));
            this.mark();
          },
        },
        'show all ' + text(lines.length),
      );
      this.list.append(more);
    }
    if (!this.words) this.choose(lines.length ? lines[0].i : 0);
  }

  choose(i) {
    this.chosen = i;
    this.mark();
    this.detail.replaceChildren(...this.about(i));
  }

  mark() {
    for (const node of this.list.querySelectorAll('.effect'))
      node.setAttribute('aria-pressed', String(Number(node.dataset.input) === this.chosen));
  }

  about(i) {
    const {
      linear,
      names,
      kinds,
      slopes,
      deviations,
      direct,
      sizes,
      grids,
      categories,
      changes,
      direct_changes: directChanges,
    } = this.effects;
    const o = this.output;
    if (!names.length) return [];
    const parts = [h('h3', null, breakable(names[i]))];
    const facts = [];
    const sign = withSign((value) => text(value, 4));
    if (kinds[i] === 'number') {
      facts.push([linear ? 'one unit more' : 'slope per unit, on average', sign(slopes[i][o])]);
      facts.push([`a step of one standard deviation (${text(deviations[i])})`, sign(sizes[i][o])]);
      if (direct.length) {
        const part = direct[i][o] * deviations[i];
        facts.push(['of it through features', sign(sizes[i][o] - part)]);
        facts.push(['of it by its direct weight', sign(part)]);
      }
    }
    parts.push(
      h('p', { class: 'soft small' }, `Change of ${this.what}`),
      h(
        'dl',
        { class: 'settings one' },
        facts.map(([name, value]) => h('div', null, h('dt', null, name), h('dd', null, value))),
      ),
    );
    if (categories[i].length) {
      const split = directChanges.length > 0;
      parts.push(
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
                h('th', null, `instead of ${categories[i][0]}`),
                h('th', { class: 'num' }, 'change'),
                split && h('th', { class: 'num' }, 'of it direct'),
              ),
            ),
            h(
              'tbody',
              null,
              categories[i]
                .slice(1)
                .map((name, c) =>
                  h(
                    'tr',
                    null,
                    h('td', { class: 'name', title: name }, name),
                    h('td', { class: 'num' }, sign(changes[i][c][o])),
                    split && h('td', { class: 'num' }, sign(directChanges[i][c][o])),
                  ),
                ),
            ),
          ),
        ),
      );
    }
    if (grids[i].length > 1) parts.push(this.curve(i));
    return parts;
  }

  curve(i) {
    const { grids, curves, names } = this.effects;
    const grid = grids[i];
    const values = curves[i].map((point) => point[this.output]);
    const limits = [Math.min(...this.curvesOf().flat()), Math.max(...this.curvesOf().flat())];
    const node = h(
      'div',
      { class: 'curve' },
      h('p', { class: 'soft small' }, `The average answer where it has each value, less its mean`),
      h(
        'div',
        null,
        chart(`Change of ${this.what} with ${names[i]}`, (width) => {
          const height = 220;
          const { x, y, box, lines } = axes(width, height, [grid[0], grid.at(-1)], limits, {
            xLabel: names[i].length > 40 ? names[i].slice(0, 39) + '…' : names[i],
            yLabel: null,
          });
          return [
            height,
            [
              lines,
              s('line', { class: 'zero', x1: box.left, x2: box.right, y1: y(0), y2: y(0) }),
              s('polyline', {
                class: 'effect-curve',
                fill: 'none',
                stroke: 'var(--accent)',
                'stroke-width': 2.2,
                points: grid.map((value, j) => `${x(value)},${y(values[j])}`).join(' '),
              }),
              grid.map((value, j) =>
                s(
                  'circle',
                  { cx: x(value), cy: y(values[j]), r: 3, fill: 'var(--accent)' },
                  s('title', null, `${text(value, 4)}: ${withSign(text)(values[j])}`),
                ),
              ),
            ],
          ];
        }),
      ),
    );
    node.querySelector('p').append(
      ' ',
      csvButton('curve of ' + names[i], [names[i], 'change of ' + this.what], () =>
        grid.map((value, j) => [value, values[j]]),
      ),
    );
    return node;
  }

  // All curves of an output share their scale, so that flat ones look flat.
  curvesOf() {
    return this.effects.curves.filter((curve) => curve.length).map((curve) => curve.map((point) => point[this.output]));
  }

  map() {
    const { names, sizes, outputs, output_title: title } = this.effects;
    const shown = names.slice(0, MANY_ROWS);
    return panel(
      'All at a glance',
      `Rows are ${this.words ? 'words' : 'inputs'}, columns are ${title === 'class' ? 'classe' : title}s. Blue raises, orange lowers` +
        (this.words ? '' : '; of categories the one that does most') +
        (shown.length < names.length ? `. The ${shown.length} with the largest effects.` : '.'),
      numberMap(
        shown.map((_, i) => sizes[i]),
        shown,
        outputs,
        {
          limit: largest(sizes.flat()),
          limits: this.ownUnits && outputs.map((_, o) => largest(sizes.map((line) => line[o]))),
          label: 'Net effects of all inputs',
          rowNoun: this.words ? 'word' : 'input',
          columnNoun: title,
        },
      ),
    );
  }

  pictures() {
    const { outputs, pictures, picture_limit: limit } = this.effects;
    const bytes = bytesOf(pictures, true);
    return withCsv(
      panel(
        'One step of each pixel',
        `The change of the score when a pixel is brighter by one standard deviation of its own: blue raises it, orange lowers it; full colour is ${text(limit)}`,
        h(
          'ol',
          { class: 'thumbs wide-thumbs' },
          outputs.map((name, o) =>
            h(
              'li',
              null,
              loadingPicture(pictures, bytes, o, `Net effects of the pixels for ${name}`),
              h('div', { class: 'cap' }, name),
            ),
          ),
        ),
      ),
      'net effects',
      ...this.csv(),
    );
  }

  csv() {
    const {
      outputs,
      output_title: title,
      names,
      kinds,
      slopes,
      sizes,
      deviations,
      direct,
      categories,
      changes,
      direct_changes: directChanges,
      answer,
    } = this.effects;
    const heads = [
      'input',
      'value',
      'instead of',
      title || 'output',
      'change of',
      'per unit',
      'standard deviation',
      'change',
      'direct part per unit or of the change',
    ];
    const rows = () =>
      names.flatMap((name, i) =>
        outputs.flatMap((output, o) => {
          const found = [];
          if (kinds[i] !== 'category')
            found.push([
              name,
              '',
              '',
              output,
              answer,
              slopes[i][o],
              deviations[i],
              sizes[i][o],
              direct.length ? direct[i][o] : null,
            ]);
          categories[i]
            .slice(1)
            .forEach((value, c) =>
              found.push([
                name,
                value,
                categories[i][0],
                output,
                answer,
                null,
                null,
                changes[i][c][o],
                directChanges.length ? directChanges[i][c][o] : null,
              ]),
            );
          return found;
        }),
      );
    return [heads, rows];
  }
}

function effectsSection(data) {
  const view = new EffectsView(data);
  return section('effects', 'What moves the answer', view.lead(), view.view());
}

// Beside the features: what each input adds by itself, where the model has weights for inputs.
function directWeights(data) {
  const { effects, features } = data;
  if (!effects || !effects.direct.length || effects.pictures) return null;
  const {
    names,
    kinds,
    outputs,
    sizes,
    direct,
    deviations,
    categories,
    changes,
    direct_changes: directChanges,
  } = effects;
  const lines = (o) =>
    names.flatMap((name, i) => {
      const found = [];
      if (kinds[i] === 'number') {
        const part = direct[i][o] * deviations[i];
        found.push([name, sizes[i][o] - part, part, sizes[i][o]]);
      }
      categories[i].slice(1).forEach((value, c) => {
        const [whole, part] = [changes[i][c][o], directChanges[i][c][o]];
        found.push([`${name}: ${value}`, whole - part, part, whole]);
      });
      return found;
    });
  const heads = ['input', `through ${features.noun}s`, 'direct', 'net'];
  const box = h('div');
  const show = (o) => box.replaceChildren(sortableTable(heads, lines(o), 'Direct weights of the inputs'));
  show(0);
  const chooser =
    outputs.length > 1 &&
    h(
      'p',
      null,
      h(
        'label',
        null,
        effects.output_title + ' ',
        h(
          'select',
          { class: 'choice', change: (event) => show(Number(event.target.value)) },
          outputs.map((name, i) => h('option', { value: i }, name)),
        ),
      ),
    );
  return withCsv(
    panel(
      `Beside the ${features.noun}s: direct weights of the inputs`,
      `This model sees the inputs beside its ${features.noun}s, so an input acts in two ways. Changes per standard deviation, of categories in place of the most frequent one.`,
      chooser,
      box,
    ),
    'direct weights',
    [effects.output_title || 'output', ...heads],
    () => outputs.flatMap((name, o) => lines(o).map((line) => [name, ...line])),
  );
}
