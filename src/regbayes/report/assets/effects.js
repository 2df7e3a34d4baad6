// Net effects: what each input does to the prediction of the whole model, in the units of the input.

const FEW_EFFECTS = 20;

class EffectsView {
  constructor(data) {
    this.data = data;
    this.effects = data.effects;
    this.output = data.effects.opens_on;
    this.words = data.effects.kinds[0] === 'word';
    this.several = data.effects.outputs.length > 1;
    this.ownUnits = Boolean(data.regression?.task_names.length); // different targets, not one target of several tasks
    const { answer: called } = data.effects;
    this.called = ['score', 'target'].includes(called) ? 'the ' + called : called;
  }

  // What an effect is an effect on.
  get what() {
    const { answer: called, outputs, output_title: title } = this.effects;
    const output = outputs[this.output];
    if (called === 'score') return 'the score of ' + (title === 'class' ? 'class ' : '') + output;
    if (!this.several) return this.called;
    return this.ownUnits ? output : `${this.called} in ${output}`;
  }

  lead() {
    const { linear, answer: called, n_rows: n, n_inputs: all, names, left_out: out, outputs, direct } = this.effects;
    const by = direct ? 'through features and by direct weights' : 'through all features';
    const parts = [];
    if (this.words)
      parts.push(
        `What one more occurrence of a word does to ${this.called}, on average over ${plural(n, 'document')}.`,
      );
    else if (linear)
      parts.push(
        `This model is linear in its inputs: a step of an input changes ${this.called} by the same amount in every row.`,
      );
    else
      parts.push(
        `How ${this.called} changes with each input, on average over ${plural(n, 'row')}, with its standard error after ±. The model is not linear, so single rows differ${this.effects.pictures ? '' : ', and curves show where'}.`,
      );
    if (!this.words) parts.push(`It is the net effect, ${by}; all other inputs stay as they are.`);
    if (called === 'score')
      parts.push(
        this.several
          ? 'The class or label with a higher score is more likely to be predicted.'
          : `The prediction is ${outputs[0]} where the score is above 0.`,
      );
    if (names.length + out.length < all)
      parts.push(`${text(names.length)} of ${text(all)} ${this.words ? 'words' : 'inputs'} are listed.`);
    if (out.length)
      parts.push(
        `Not compared, because nearly every row has a value of its own: ${out.slice(0, 5).join(', ')}${out.length > 5 ? ' and more' : ''}.`,
      );
    return parts.join(' ');
  }

  view() {
    if (this.effects.pictures) return this.pictures();
    const { outputs, output_title: title } = this.effects;
    this.list = h('div', { class: 'effect-list' });
    const region = { role: 'region', 'aria-label': 'The chosen input', 'aria-live': 'polite' };
    this.detail = h('div', { class: 'panel effect-detail', ...region });
    this.caption = h('p', { class: 'soft small' });
    const show = (output) => {
      this.output = output;
      this.fill();
    };
    const choice = this.several && chooser(title, outputs, this.output, show);
    const heading = this.words ? 'One word more' : 'One step of each input';
    const node = panel(heading, '', this.file(), this.caption, choice, this.list);
    this.fill();
    const main = this.words ? node : h('div', { class: 'effects' }, node, this.detail);
    return h('div', { class: 'stack' }, main, this.several && outputs.length <= 60 && this.map());
  }

  // One line for each input: of the categories of a column the one that does most, the others behind a click.
  fill() {
    const { names, kinds, sizes, errors, deviations, categories, changes } = this.effects;
    const o = this.output;
    const order = ranked(sizes, (line) => Math.abs(line[o]));
    const limit = largest(sizes.map((line) => line[o]));
    const format = withSign(uniform(sizes.map((line) => line[o])));
    const note = (i) => {
      if (kinds[i] === 'number') return `one sd is ${text(deviations[i])}`;
      if (kinds[i] === 'word') return '';
      const others = categories[i].length - 2;
      return `instead of ${categories[i][0]}${others ? `; ${plural(others, 'other value')}` : ''}`;
    };
    const label = (i) => {
      if (kinds[i] !== 'category') return names[i];
      const best = ranked(changes[i], (line) => Math.abs(line[o]))[0];
      return `${names[i]}: ${categories[i][best + 1]}`;
    };
    const line = (i) => {
      const button = { type: 'button', 'aria-pressed': 'false', click: () => this.choose(i) };
      const value = sizes[i][o];
      const error = errors[i][o] > 0 && h('span', { class: 'error' }, ' ± ' + text(errors[i][o], 1));
      return h(
        this.words ? 'div' : 'button',
        { class: 'effect', 'data-input': i, ...(this.words ? {} : button) },
        h('span', { class: 'effect-name', title: label(i) }, breakable(label(i))),
        signedTrack(value, limit),
        h('span', { class: 'figure' }, h('span', { class: 'size' }, format(value)), error),
        note(i) && h('span', { class: 'effect-note' }, note(i)),
      );
    };
    this.list.replaceChildren(...order.slice(0, FEW_EFFECTS).map(line));
    const rest = () => {
      this.list.append(...order.slice(FEW_EFFECTS).map(line));
      this.mark();
    };
    if (order.length > FEW_EFFECTS) this.list.append(moreButton('show all ' + text(order.length), rest));
    const steps =
      'of numbers when they rise by one standard deviation, of categories in place of the most frequent one';
    this.caption.textContent = `The change of ${this.what}` + (this.words ? '' : ': ' + steps);
    if (!this.words && order.length) this.choose(order[0]);
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
    const { linear, names, kinds, slopes, deviations, direct, sizes, errors, grids, categories } = this.effects;
    const { changes, change_errors: changeErrors, direct_changes: directChanges } = this.effects;
    const o = this.output;
    const sign = withSign((value) => text(value, 4));
    const parts = [h('h3', null, breakable(names[i])), h('p', { class: 'soft small' }, `Change of ${this.what}`)];
    if (kinds[i] === 'number') {
      const error = errors[i][o] > 0 ? ` ± ${text(errors[i][o], 2)}` : '';
      const facts = [
        [linear ? 'one unit more' : 'slope per unit, on average', sign(slopes[i][o])],
        [`a step of one standard deviation (${text(deviations[i])})`, sign(sizes[i][o]) + error],
      ];
      if (direct) {
        const part = direct[i][o] * deviations[i];
        facts.push(['of it through features', sign(sizes[i][o] - part)], ['of it by its direct weight', sign(part)]);
      }
      parts.push(definitions(facts, 'settings one'));
    }
    if (categories[i].length) {
      const split = directChanges.length > 0;
      const heads = [
        `instead of ${categories[i][0]}`,
        'change',
        ...(linear ? [] : ['error']),
        ...(split ? ['of it direct'] : []),
      ];
      const rows = categories[i].slice(1).map((name, c) => {
        const more = [...(linear ? [] : [changeErrors[i][c][o]]), ...(split ? [directChanges[i][c][o]] : [])];
        return [name, changes[i][c][o], ...more];
      });
      parts.push(table('Changes by category', heads, rows, { sortable: true }));
    }
    if (grids[i].length > 1) parts.push(this.curve(i));
    return parts;
  }

  curve(i) {
    const { grids, curves, names } = this.effects;
    const grid = grids[i];
    const of = (curve) => curve.map((point) => point[this.output]);
    const values = of(curves[i]);
    const all = curves.flatMap(of); // all curves of an output share their scale, so that flat ones look flat
    const limits = [Math.min(...all), Math.max(...all)];
    const xLabel = names[i].length > 40 ? names[i].slice(0, 39) + '…' : names[i];
    const draw = (width) => {
      const { x, y, box, lines } = axes(width, 220, [grid[0], grid.at(-1)], limits, { xLabel });
      const point = (value, j) => {
        const words = s('title', null, `${text(value, 4)}: ${withSign(text)(values[j])}`);
        return s('circle', { cx: x(value), cy: y(values[j]), r: 3, fill: 'var(--accent)' }, words);
      };
      const points = grid.map((value, j) => `${x(value)},${y(values[j])}`).join(' ');
      const zero = segment(box.left, y(0), box.right, y(0), { class: 'zero' });
      return [220, [lines, zero, s('polyline', { class: 'effect-curve', points }), grid.map(point)]];
    };
    const rows = () => grid.map((value, j) => [value, values[j]]);
    const file = { name: 'curve of ' + names[i], heads: [names[i], 'change of ' + this.what], rows };
    const about = h(
      'p',
      { class: 'soft small' },
      'The average prediction where it has each value, less their mean ',
      csvButton(file),
    );
    return h('div', { class: 'curve' }, about, h('div', null, chart(`Change of ${this.what} with ${names[i]}`, draw)));
  }

  map() {
    const { names, sizes, outputs, output_title: title } = this.effects;
    const shown = names.slice(0, MANY_ROWS);
    const [things, thing] = this.words ? ['words', 'word'] : ['inputs', 'input'];
    const note = this.words ? '' : '; of categories the one that does most';
    const some = shown.length < names.length ? `. The ${shown.length} with the largest effects.` : '.';
    const options = {
      limit: largest(sizes.flat()),
      limits: this.ownUnits && outputs.map((_, o) => largest(sizes.map((line) => line[o]))),
      label: 'Net effects of all inputs',
      rowNoun: thing,
      columnNoun: title,
    };
    const lead = `Rows are ${things}, columns are ${title === 'class' ? 'classe' : title}s. Blue raises, orange lowers${note}${some}`;
    return panel('All at a glance', lead, null, numberMap(sizes.slice(0, MANY_ROWS), shown, outputs, options));
  }

  pictures() {
    const { outputs, pictures, picture_limit: limit } = this.effects;
    const bytes = bytesOf(pictures, true);
    const item = (name, o) => {
      const picture = loadingPicture(pictures, bytes, o, `Net effects of the pixels for ${name}`);
      return h('li', null, picture, h('div', { class: 'cap' }, name));
    };
    const lead = `The change of the score when a pixel is brighter by one standard deviation of its own: blue raises it,
      orange lowers it; full color is ${text(limit)}`;
    return panel('One step of each pixel', lead, this.file(), h('ol', { class: 'thumbs' }, outputs.map(item)));
  }

  file() {
    const { outputs, output_title: title, answer: called, names, kinds, ...effects } = this.effects;
    const { slopes, sizes, errors, deviations, direct, categories, changes, change_errors: changeErrors } = effects;
    const number = (i, o) => [slopes[i][o], deviations[i], sizes[i][o], errors[i][o], direct ? direct[i][o] : null];
    const category = (i, c, o) => [
      null,
      null,
      changes[i][c][o],
      changeErrors[i][c][o],
      effects.direct_changes[i]?.[c][o],
    ];
    const lines = (name, i) =>
      outputs.flatMap((output, o) => [
        ...(kinds[i] === 'category' ? [] : [[name, '', '', output, called, ...number(i, o)]]),
        ...(categories[i] ?? [])
          .slice(1)
          .map((value, c) => [name, value, categories[i][0], output, called, ...category(i, c, o)]),
      ]);
    const numbers = [
      'per unit',
      'standard deviation',
      'change',
      'standard error',
      'direct part per unit or of the change',
    ];
    const heads = ['input', 'value', 'instead of', title || 'output', 'change of', ...numbers];
    return { name: 'net effects', heads, rows: () => names.flatMap(lines) };
  }
}

function effectsSection(data) {
  const view = new EffectsView(data);
  return section('effects', 'What moves the prediction', view.lead(), view.view());
}

// After the features: what each input adds by itself, where the model has weights for inputs.
function directWeights({ effects, features }) {
  if (!effects?.direct || effects.pictures) return null;
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
  const split = (name, whole, part) => [name, whole - part, part, whole];
  const lines = (o) =>
    names.flatMap((name, i) => [
      ...(kinds[i] === 'number' ? [split(name, sizes[i][o], direct[i][o] * deviations[i])] : []),
      ...categories[i].slice(1).map((value, c) => split(`${name}: ${value}`, changes[i][c][o], directChanges[i][c][o])),
    ]);
  const heads = ['input', `through ${features.noun}s`, 'direct', 'net'];
  const box = h('div');
  const show = (o) => box.replaceChildren(table('Direct weights of the inputs', heads, lines(o), { sortable: true }));
  show(effects.opens_on);
  return panel(
    'Direct weights of the inputs',
    `This model sees the inputs in addition to its ${features.noun}s, so an input acts in two ways. Changes per standard
      deviation, of categories in place of the most frequent one.`,
    {
      name: 'direct weights',
      heads: [effects.output_title || 'output', ...heads],
      rows: () => outputs.flatMap((name, o) => lines(o).map((line) => [name, ...line])),
    },
    outputs.length > 1 && chooser(effects.output_title, outputs, effects.opens_on, show),
    box,
  );
}
