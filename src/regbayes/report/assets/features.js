// The features: a list that can be sorted and walked with the arrow keys, and everything about the chosen one.

const FEW_GROUPS = 14;

class FeatureExplorer {
  constructor(data) {
    const { features } = data;
    this.data = data;
    this.features = features;
    this.noun = features.noun;
    this.rowNoun = rowNoun(data);
    this.loadingBytes = bytesOf(features.pictures, true);
    this.exampleBytes = bytesOf(data.examples.pictures, false);
    // Probabilities are shown on the whole scale from 0 to 1; shares of topics are mostly small.
    this.bounded = features.probabilities && this.noun !== 'topic';
    this.sorts = {
      use: features.use,
      separation: features.separation_name && features.separation,
      influence: features.output_names.length && features.probabilities && features.influence,
      recurs: features.returned,
      number: features.number.map((value) => -value),
    };
    this.sort = 'use';
    this.order = ranked(features.use);
  }

  // "feature 3", with the inputs that say most about it.
  title(place) {
    const [number, name] = [this.features.number[place], this.features.names[place]];
    return `${this.noun} ${number}${name ? ': ' + name : ''}`;
  }

  view() {
    const sorts = Object.keys(this.sorts).filter((key) => this.sorts[key]);
    this.sortButtons = sorts.map((key) => {
      const attributes = { 'data-sort': key, 'aria-pressed': String(key === this.sort), click: () => this.sortBy(key) };
      return h('button', { type: 'button', ...attributes }, key);
    });
    const plural = sentence(this.noun) + 's';
    const keydown = (event) => this.key(event);
    this.list = h('div', { class: 'options', role: 'listbox', 'aria-label': plural, keydown });
    this.detail = h('div', { class: 'stack', id: 'detail', role: 'region', 'aria-label': 'The chosen ' + this.noun });
    this.status = h('div', { class: 'hidden-text', role: 'status' });
    const group = { class: 'sorter', role: 'group', 'aria-label': `Sort the ${this.noun}s by` };
    this.fillList();
    this.select(this.order[0], false);
    const finder = h(
      'div',
      { class: 'panel finder' },
      h('div', group, h('span', null, 'sort by'), this.sortButtons),
      this.list,
      this.status,
    );
    return h('div', { class: 'explorer' }, finder, this.detail);
  }

  sortBy(key) {
    this.sort = key;
    this.order = ranked(this.sorts[key]);
    for (const button of this.sortButtons) button.setAttribute('aria-pressed', String(button.dataset.sort === key));
    this.fillList();
    this.select(this.order[0], false);
    this.list.scrollTop = 0;
  }

  fillList() {
    const { features } = this;
    const measure = ['separation', 'influence'].includes(this.sort) ? this.sorts[this.sort] : features.use;
    const whole = this.sort === 'separation' || (this.bounded && this.sort !== 'influence');
    const top = Math.max(whole ? 1 : 1e-12, ...measure.map((value) => value ?? 0));
    const format = uniform(measure);
    const hint = (words) => words && h('div', { class: 'hint', title: words }, words);
    const option = (place) => {
      const returned = features.returned?.[place] ?? null;
      const width = (100 * (measure[place] ?? 0)) / top + '%';
      const name = [h('span', null, this.title(place)), h('span', { class: 'number' }, format(measure[place]))];
      const attributes = {
        role: 'option',
        id: 'option-' + features.number[place],
        tabindex: -1,
        'aria-selected': 'false',
      };
      return h(
        'div',
        {
          class: features.pictures ? 'option pictured' : 'option',
          ...attributes,
          click: () => this.select(place, true),
        },
        features.pictures && loadingPicture(features.pictures, this.loadingBytes, place, ''),
        h('div', { class: 'name' }, name),
        hint(features.pictures ? this.highGroups(place) : this.direction(place)),
        hint(returned !== null && 'recurs ' + percent(returned)),
        h('div', { class: 'meter', 'aria-hidden': true }, h('i', { style: { width } })),
      );
    };
    this.options = new Map(this.order.map((place) => [place, option(place)]));
    this.list.replaceChildren(...this.options.values());
  }

  // Classes that have a feature: of probabilities more than half of them, of amounts half the largest or more.
  highGroups(place) {
    const { group_means: means, group_names: names, probabilities } = this.features;
    const mine = means[place];
    if (!mine.length) return '';
    const least = probabilities ? 0.5 : Math.max(0, ...mine) / 2;
    const high = ranked(mine).filter((g) => mine[g] > least);
    if (high.length)
      return (
        (probabilities ? 'most of ' : 'most in ') +
        high
          .slice(0, 4)
          .map((g) => names[g])
          .join(', ')
      );
    return probabilities ? 'a minority everywhere' : 'in no class more than in others';
  }

  // What a feature has positive and negative weights for: classes, labels or tasks, the largest first.
  supported(place) {
    const { output_names: names, weights, output_title: title, group_names: groups } = this.features;
    const mine = weights[place] ?? [];
    if (names.length === 1 && title === 'class') {
      const other = groups.find((name) => name !== names[0]) ?? 'not ' + names[0];
      return [mine[0] > 0 ? [names[0]] : mine[0] < 0 ? [other] : [], []];
    }
    const order = ranked(mine, Math.abs).filter((i) => Math.abs(mine[i]) > 0.3 * largest(mine));
    return [1, -1].map((sign) => order.filter((i) => sign * mine[i] > 0).map((i) => names[i]));
  }

  direction(place) {
    const [up, down] = this.supported(place).map((names) => names.slice(0, 2).join(', '));
    return [up && '↑ ' + up, down && '↓ ' + down].filter(Boolean).join('  ');
  }

  key(event) {
    const at = this.order.indexOf(this.current);
    const last = this.order.length - 1;
    const goals = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: last };
    const goal = goals[event.key];
    if (goal === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.select(this.order[Math.min(last, Math.max(0, goal))], true);
  }

  step(by) {
    const place = this.order[this.order.indexOf(this.current) + by];
    if (place === undefined) return;
    this.select(place, false);
    this.detail.querySelectorAll('.steps button')[by < 0 ? 0 : 1].focus(); // the old buttons are gone
  }

  select(place, focus) {
    this.current = place;
    for (const [other, node] of this.options) {
      node.setAttribute('aria-selected', String(other === place));
      node.tabIndex = other === place ? 0 : -1;
    }
    const node = this.options.get(place);
    if (focus) node.focus({ preventScroll: true });
    const [box, mine] = [this.list, node].map((one) => one.getBoundingClientRect());
    if (box.height && (mine.top < box.top || mine.bottom > box.bottom))
      this.list.scrollTop += mine.top - box.top - (box.height - mine.height) / 2;
    const left = h('div', { class: 'stack' }, this.loading(place), this.weights(place));
    const right = h('div', { class: 'stack' }, this.values(place), this.groups(place));
    const columns = h('div', { class: 'columns' }, left, right);
    this.detail.replaceChildren(this.head(place), columns, this.topRanked(place));
    const at = this.order.indexOf(place) + 1;
    this.status.textContent = `${sentence(this.title(place))}, ${at} of ${this.order.length}`;
  }

  head(place) {
    const { features } = this;
    const facts = [['use', text(features.use[place]), features.use_name]];
    const add = (name, value, note = '') => value && facts.push([name, value, note]);
    const some = (names) => names.slice(0, 4).join(', ') + (names.length > 4 ? ` and ${names.length - 4} more` : '');
    add('separation', features.separation_name && text(features.separation[place]), features.separation_name);
    if (features.returned && features.returned[place] !== null) {
      add('recurs', percent(features.returned[place]), features.returned_note);
      add('similarity', text(features.similarity[place]), 'median over those fits; 1 is the same feature');
    }
    add('says most about', features.separates[place]);
    const [up, down] = this.supported(place);
    const ofClass = features.output_title === 'class';
    add(ofClass ? 'positive weight for' : 'raises', some(up));
    add(ofClass ? 'negative weight for' : 'lowers', some(down));
    const fact = ([name, value, note]) =>
      h('div', null, h('dt', null, name), h('dd', null, value), note && h('span', { class: 'soft small' }, note));
    const stepper = (by, name, arrow) =>
      h('button', { type: 'button', 'aria-label': `${name} ${this.noun}`, click: () => this.step(by) }, arrow);
    const at = h('span', { class: 'soft small' }, `${this.order.indexOf(place) + 1} of ${this.order.length} `);
    const steps = h('div', { class: 'steps' }, at, stepper(-1, 'Previous', '←'), stepper(1, 'Next', '→'));
    const title = h('div', { class: 'detail-head' }, h('h3', null, sentence(this.title(place))), steps);
    return h('div', { class: 'panel' }, title, h('dl', { class: 'facts' }, facts.map(fact)));
  }

  file(what, place, heads, rows) {
    return { name: `${what} of ${this.noun} ${this.features.number[place]}`, heads, rows };
  }

  loading(place) {
    const { features } = this;
    const title = this.data.kind === 'text' ? 'Top words' : 'Loading';
    const lead = sentence(features.loading_title);
    if (features.pictures) {
      const limit = features.picture_limit;
      const label = `Picture of the loading of ${this.noun} ${features.number[place]}`;
      const picture = loadingPicture(features.pictures, this.loadingBytes, place, label);
      const ends = [
        h('b', { class: 'minus' }, '■ ' + text(-limit)),
        h('span', null, '0'),
        h('b', { class: 'plus' }, text(limit) + ' ■'),
      ];
      return panel(
        title,
        lead,
        null,
        h('div', { class: 'loading-picture' }, picture),
        h('div', { class: 'scale' }, ends),
      );
    }
    const [names, values] = [features.loading_names[place], features.loading_values[place]];
    const units = features.loading_units?.[place];
    const sign = values.some((value) => value < 0) ? withSign(text) : text;
    const items = names.map((label, i) => ({ label, value: values[i], shown: units && sign(units[i] ?? values[i]) }));
    const words = features.distinctive[place];
    const heads = ['input', 'loading', ...(units ? ["in the input's units"] : [])];
    return panel(
      title,
      lead + (units ? ', in their own units; bars are in those of the model. The largest ones' : '; the largest ones'),
      this.file('loading', place, heads, () => names.map((name, i) => [name, values[i], ...(units ? [units[i]] : [])])),
      words && h('p', { class: 'distinctive' }, h('span', { class: 'soft' }, 'Distinctive words: '), words.join(', ')),
      bars(items),
    );
  }

  values(place) {
    const { features } = this;
    const counts = features.histogram[place];
    const [low, high] = features.limits[place];
    const mean = features.mean[place];
    const at = (i) => low + ((high - low) * i) / counts.length;
    const label = `Histogram of the values of ${this.noun} ${features.number[place]}; mean ${text(mean)}`;
    const rows = () => counts.map((count, i) => [at(i), at(i + 1), count]);
    const file = this.file('values', place, ['from', 'to', this.rowNoun + 's'], rows);
    const lead = `How many ${this.rowNoun}s have which value`;
    return panel('Values', lead, file, h('div', null, histogram(counts, [low, high], mean, label)));
  }

  groups(place) {
    const { group_names: names, group_title: title, group_counts: counts, ...features } = this.features;
    if (!names.length) return null;
    const [means, deviations] = [features.group_means[place], features.group_deviations[place]];
    // Of many groups the highest come first, because the others are not shown at once.
    const order = names.length > FEW_GROUPS && title !== 'target' ? ranked(means) : names.map((_, g) => g);
    const item = (g) => {
      if (means[g] === null) return { label: names[g], value: null };
      return { label: names[g], value: means[g], low: means[g] - deviations[g], high: means[g] + deviations[g] };
    };
    const target = targetName(this.data);
    const lead = {
      class: 'Average in each class',
      label: `Average over the ${this.rowNoun}s with each label`,
      target: `Average in each fifth of the ${this.rowNoun}s, by ${target}`,
    }[title];
    return panel(
      'By ' + (title === 'target' ? target : title),
      lead + ', and one standard deviation to either side',
      this.file('averages', place, [title, 'average', 'deviation', this.rowNoun + 's'], () =>
        names.map((name, g) => [name, means[g], deviations[g], counts[g]]),
      ),
      bars(order.map(item), { limits: this.bounded ? [0, 1] : null, few: FEW_GROUPS }),
    );
  }

  weights(place) {
    const { output_names: names, output_title: title, weights } = this.features;
    if (!names.length) return null;
    const mine = weights[place];
    const many = mine.length > FEW_GROUPS;
    const order = many ? ranked(mine, title === 'task' ? Math.abs : (value) => value) : mine.map((_, i) => i);
    const limit = largest(weights.flat());
    const unit =
      this.noun === 'topic'
        ? 'a document about this topic alone has above or below the mean'
        : 'one unit of the feature adds';
    const lead =
      title === 'target'
        ? 'What ' + unit
        : `Weight of the ${this.noun} ${title === 'task' ? 'in' : 'for'} each ${title}`;
    const items = order.map((i) => ({ label: names[i], value: mine[i] }));
    return panel(
      'Weights',
      lead,
      this.file('weights', place, [title, 'weight'], () => names.map((name, i) => [name, mine[i]])),
      bars(items, { limits: [Math.min(0, -limit), limit], signs: true, few: FEW_GROUPS }),
    );
  }

  topRanked(place) {
    const { features, data } = this;
    const { truths, predictions, names } = data.examples;
    const [examples, values] = [features.examples[place], features.example_values[place]];
    const [inputNames, inputs] = [features.example_input_names[place], features.example_inputs[place]];
    const format = features.probabilities ? (value) => value.toFixed(3) : uniform(values);
    const known = truths.some(Boolean);
    const columns = {
      heads: ['value', ...(known ? [targetName(data)] : []), ...inputNames],
      cells: (example, i) => [values[i], ...(known ? [answer(data, example)] : []), ...inputs[i]],
    };
    const rows = () =>
      examples.map((example, i) => [names[example], values[i], truths[example], predictions[example], ...inputs[i]]);
    const heads = [this.rowNoun, 'value', targetName(data), 'predicted', ...inputNames];
    const lead =
      `The ${this.rowNoun}s with the highest values` +
      (inputNames.length ? ', and the inputs that the feature is most about' : '');
    const notes = (example, i) => [answer(data, example), format(values[i])];
    const list = exampleList(data, this.exampleBytes, examples, notes, columns);
    return panel(`The ${examples.length} top-ranked examples`, lead, this.file('examples', place, heads, rows), list);
  }
}
