// The features: a list that can be sorted and walked with the arrow keys, and everything about the chosen one.

const FEW_GROUPS = 14;
const SORTS = [
  { key: 'use', label: 'use', of: (features) => features.use },
  { key: 'separation', label: 'separation', of: (features) => features.separation },
  { key: 'influence', label: 'influence', of: (features) => features.influence },
  { key: 'returned', label: 'comes back', of: (features) => features.returned },
  { key: 'number', label: 'number', of: (features) => features.number.map((value) => -value) },
];

class FeatureExplorer {
  constructor(data) {
    this.data = data;
    this.features = data.features;
    this.loadingBytes = this.features.pictures && bytesOf(this.features.pictures, true);
    this.exampleBytes = data.examples.pictures && bytesOf(data.examples.pictures, false);
    this.noun = this.features.noun;
    this.sort = 'use';
    this.order = this.features.number.map((_, i) => i);
    this.current = 0;
    this.showFolded = this.features.number.every((_, i) => this.isFolded(i));
  }

  // Whether no answer rests on a feature.
  isIdle(place) {
    return Boolean(this.features.idle?.[place]);
  }

  isTwin(place) {
    return (this.features.twins?.[place] ?? -1) >= 0;
  }

  // Features that say nothing, or nothing new, are folded away.
  isFolded(place) {
    return this.isIdle(place) || this.isTwin(place);
  }

  get visible() {
    return this.order.filter((place) => this.showFolded || !this.isFolded(place));
  }

  // Features that are on or off are shown on the whole scale from 0 to 1; shares of topics are mostly small.
  get bounded() {
    return this.features.probabilities && this.noun !== 'topic';
  }

  get rowNoun() {
    return rowNoun(this.data);
  }

  view() {
    const features = this.features;
    const possible = {
      separation: Boolean(features.separation_name),
      influence: Boolean(features.influence && features.output_names.length && features.probabilities),
      returned: Boolean(features.returned),
    };
    const sorts = SORTS.filter((sort) => possible[sort.key] ?? true);
    this.sortButtons = sorts.map((sort) =>
      h(
        'button',
        {
          type: 'button',
          'data-sort': sort.key,
          'aria-pressed': String(sort.key === this.sort),
          click: () => this.sortBy(sort.key),
        },
        sort.label,
      ),
    );
    this.list = h('div', {
      class: 'options',
      role: 'listbox',
      'aria-label': sentence(this.noun) + 's',
      keydown: (event) => this.key(event),
    });
    this.detail = h('div', { class: 'stack', id: 'detail', role: 'region', 'aria-label': 'The chosen ' + this.noun });
    this.status = h('div', { class: 'hidden-text', role: 'status' });
    const idle = this.order.filter((place) => this.isIdle(place)).length;
    const twins = this.order.filter((place) => this.isTwin(place) && !this.isIdle(place)).length;
    const folded = [
      idle && `${plural(idle, this.noun)} that no answer rests on`,
      twins && `${plural(twins, this.noun)} with the same values as another`,
    ].filter(Boolean);
    this.foldedButton =
      folded.length > 0 &&
      !this.showFolded &&
      h(
        'button',
        { type: 'button', class: 'more folded-features', click: () => this.unfold() },
        'show ' + folded.join(' and '),
      );
    this.fillList();
    this.select(this.visible[0], false);
    return h(
      'div',
      { class: 'explorer' },
      h(
        'div',
        { class: 'panel finder' },
        h(
          'div',
          { class: 'sorter', role: 'group', 'aria-label': `Sort the ${this.noun}s by` },
          h('span', null, 'sort by'),
          this.sortButtons,
        ),
        this.list,
        this.foldedButton,
        this.status,
      ),
      this.detail,
    );
  }

  unfold() {
    this.showFolded = true;
    this.foldedButton.remove();
    this.fillList();
    this.select(this.current, false);
  }

  sortBy(key) {
    this.sort = key;
    const keys = SORTS.find((sort) => sort.key === key).of(this.features);
    this.order.sort((a, b) => (keys[b] ?? -Infinity) - (keys[a] ?? -Infinity) || a - b);
    for (const button of this.sortButtons) button.setAttribute('aria-pressed', String(button.dataset.sort === key));
    this.fillList();
    this.select(this.visible[0], false);
    this.list.scrollTop = 0;
  }

  fillList() {
    const { features } = this;
    const separating = this.sort === 'separation';
    const measure = { separation: features.separation, influence: features.influence }[this.sort] ?? features.use;
    const top = Math.max(...measure.map((value) => value ?? 0), 1e-12);
    const format = uniform(measure);
    this.options = new Map();
    const options = this.visible.map((place) => {
      const whole = separating || (this.bounded && this.sort !== 'influence');
      const share = (measure[place] ?? 0) / (whole ? Math.max(1, top) : top);
      const node = h(
        'div',
        {
          class:
            'option' +
            (features.pictures ? ' pictured' : '') +
            (features.all_in_use[features.number[place]] ? '' : ' faint'),
          role: 'option',
          id: 'option-' + features.number[place],
          tabindex: -1,
          'aria-selected': 'false',
          click: () => this.select(place, true),
        },
        features.pictures && loadingPicture(features.pictures, this.loadingBytes, place, ''),
        h(
          'div',
          { class: 'name' },
          h('span', null, this.noun + ' ' + features.number[place]),
          h('span', { class: 'number' }, format(measure[place])),
        ),
        h('div', { class: 'hint' }, this.hint(place)),
        !features.pictures && this.direction(place) && h('div', { class: 'hint' }, this.direction(place)),
        features.returned &&
          features.returned[place] !== null &&
          h('div', { class: 'hint' }, 'comes back ' + percent(features.returned[place])),
        h('div', { class: 'meter', 'aria-hidden': true }, h('i', { style: { width: 100 * share + '%' } })),
      );
      this.options.set(place, node);
      return node;
    });
    this.list.replaceChildren(...options);
  }

  // A few words that tell a feature from the others: the classes that have it, or its largest inputs.
  hint(place) {
    const { features } = this;
    const means = features.group_means[place];
    if (features.pictures && means.length) {
      // Of probabilities, classes of which more than half have it; of amounts, those with half the largest or more.
      const least = features.probabilities ? 0.5 : Math.max(0, ...means) / 2;
      const high = means
        .map((mean, g) => [mean ?? -1, g])
        .filter(([mean]) => mean > least)
        .sort((a, b) => b[0] - a[0]);
      const names = high.slice(0, 4).map(([, g]) => features.group_names[g]);
      if (high.length) return (features.probabilities ? 'most of ' : 'most in ') + names.join(', ');
      return features.probabilities ? 'a minority everywhere' : 'in no class more than in others';
    }
    if (features.distinctive.length) return features.distinctive[place].slice(0, 4).join(', ');
    return features.loading_names[place]
      .slice(0, 3)
      .map((name, i) => (features.loading_values[place][i] < 0 ? '−' : '') + name)
      .join(', ');
  }

  // What a feature speaks for and against: classes, labels or tasks, those with the largest weights first.
  speaks(place) {
    const { output_names: names, weights, output_title: title, group_names: groups } = this.features;
    const mine = weights[place] ?? [];
    if (names.length === 1 && title === 'class') {
      const other = groups.find((name) => name !== names[0]) ?? 'not ' + names[0];
      return mine[0] > 0 ? [[names[0]], []] : mine[0] < 0 ? [[other], []] : [[], []];
    }
    const order = mine.map((_, i) => i).sort((a, b) => Math.abs(mine[b]) - Math.abs(mine[a]));
    const much = order.filter((i) => Math.abs(mine[i]) > 0.3 * Math.abs(mine[order[0]]));
    return [1, -1].map((sign) => much.filter((i) => sign * mine[i] > 0).map((i) => names[i]));
  }

  direction(place) {
    const twin = this.features.twins?.[place] ?? -1;
    if (twin >= 0) return `the same as ${this.noun} ${twin}`;
    const [up, down] = this.speaks(place).map((names) => names.slice(0, 2).join(', '));
    return [up && '↑ ' + up, down && '↓ ' + down].filter(Boolean).join('  ');
  }

  key(event) {
    const order = this.visible;
    const at = order.indexOf(this.current);
    const goal = {
      ArrowDown: at + 1,
      ArrowRight: at + 1,
      ArrowUp: at - 1,
      ArrowLeft: at - 1,
      Home: 0,
      End: order.length - 1,
    }[event.key];
    if (goal === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.select(order[Math.min(order.length - 1, Math.max(0, goal))], true);
  }

  step(by) {
    const order = this.visible;
    const at = order.indexOf(this.current) + by;
    if (at < 0 || at >= order.length) return;
    this.select(order[at], false);
    this.detail.querySelectorAll('.steps button')[by < 0 ? 0 : 1].focus(); // the old buttons are gone
  }

  select(place, focus) {
    this.current = place;
    if (!this.options.has(place)) this.unfold();
    for (const [other, node] of this.options) {
      node.setAttribute('aria-selected', String(other === place));
      node.tabIndex = other === place ? 0 : -1;
    }
    const node = this.options.get(place);
    if (focus) node.focus({ preventScroll: true });
    const box = this.list.getBoundingClientRect();
    const mine = node.getBoundingClientRect();
    if (box.height && (mine.top < box.top || mine.bottom > box.bottom)) {
      this.list.scrollTop += mine.top - box.top - (box.height - mine.height) / 2;
    }
    this.detail.replaceChildren(...this.about(place));
    this.status.textContent = `${sentence(this.noun)} ${this.features.number[place]}, ${this.visible.indexOf(place) + 1} of ${this.visible.length}`;
  }

  about(place) {
    const stack = (...parts) => h('div', { class: 'stack' }, parts);
    return [
      this.head(place),
      h(
        'div',
        { class: 'columns' },
        stack(this.loading(place), this.weights(place)),
        stack(this.values(place), this.groups(place)),
      ),
      this.topRanked(place),
    ];
  }

  head(place) {
    const { features } = this;
    const number = features.number[place];
    const facts = [['use', text(features.use[place]), features.use_name]];
    if (features.separation_name)
      facts.push(['separation', text(features.separation[place]), features.separation_name]);
    if (features.returned && features.returned[place] !== null) {
      facts.push(['comes back', percent(features.returned[place]), features.returned_note]);
      facts.push(['likeness', text(features.likeness[place]), 'median over those fits; 1 is the same feature']);
    }
    if (features.separates[place]) facts.push(['says most about', features.separates[place], '']);
    const [up, down] = this.speaks(place);
    const classes = features.output_title === 'class';
    if (up.length) facts.push([classes ? 'speaks for' : 'raises', this.some(up), '']);
    if (down.length) facts.push([classes ? 'speaks against' : 'lowers', this.some(down), '']);
    const twin = features.twins?.[place] ?? -1;
    const at = this.visible.indexOf(place);
    return h(
      'div',
      { class: 'panel' },
      h(
        'div',
        { class: 'detail-head' },
        h(
          'h3',
          null,
          sentence(this.noun) + ' ' + number,
          !features.all_in_use[number] && h('span', { class: 'soft small' }, ' (hardly in use)'),
        ),
        h(
          'div',
          { class: 'steps' },
          h('span', { class: 'soft small' }, `${at + 1} of ${this.visible.length} `),
          h('button', { type: 'button', 'aria-label': 'Previous ' + this.noun, click: () => this.step(-1) }, '←'),
          h('button', { type: 'button', 'aria-label': 'Next ' + this.noun, click: () => this.step(1) }, '→'),
        ),
      ),
      h(
        'dl',
        { class: 'facts' },
        facts.map(([name, value, note]) =>
          h('div', null, h('dt', null, name), h('dd', null, value), note && h('span', { class: 'soft small' }, note)),
        ),
      ),
      twin >= 0 &&
        h('p', { class: 'small' }, `It has the same values as ${this.noun} ${twin}: two names for one thing.`),
      this.isIdle(place) && h('p', { class: 'small' }, `No answer rests on it: it hardly moves any.`),
    );
  }

  some(names) {
    return names.slice(0, 4).join(', ') + (names.length > 4 ? ` and ${names.length - 4} more` : '');
  }

  loading(place) {
    const { features } = this;
    const title = this.data.kind === 'text' ? 'Top words' : 'Loading';
    if (features.pictures) {
      const limit = features.picture_limit;
      return panel(
        title,
        sentence(features.loading_title),
        h(
          'div',
          { class: 'loading-picture' },
          loadingPicture(
            features.pictures,
            this.loadingBytes,
            place,
            `Picture of the loading of ${this.noun} ${features.number[place]}`,
          ),
        ),
        h(
          'div',
          { class: 'scale' },
          h('b', { class: 'minus' }, '■ ' + text(-limit)),
          h('span', null, '0'),
          h('b', { class: 'plus' }, text(limit) + ' ■'),
        ),
      );
    }
    const units = features.loading_units?.[place];
    const sign = features.loading_values[place].some((value) => value < 0) ? withSign(text) : text;
    const items = features.loading_names[place].map((label, i) => ({
      label,
      value: features.loading_values[place][i],
      shown: units && (units[i] === null ? sign(features.loading_values[place][i]) : sign(units[i])),
    }));
    const distinctive = features.distinctive[place];
    return withCsv(
      panel(
        title,
        sentence(features.loading_title) +
          (units ? ', in their own units; bars are in those of the model. The largest ones' : '; the largest ones'),
        distinctive && h('p', { class: 'distinctive' }, h('span', { class: 'soft' }, 'Distinctive words: '), distinctive.join(', ')),
        bars(items),
      ),
      this.fileName('loading', place),
      ['input', 'loading', ...(units ? ["in the input's units"] : [])],
      () => items.map(({ label, value }, i) => [label, value, ...(units ? [units[i]] : [])]),
    );
  }

  fileName(what, place) {
    return `${what} of ${this.noun} ${this.features.number[place]}`;
  }

  values(place) {
    const { features } = this;
    const counts = features.histogram[place];
    const [low, high] = features.limits[place];
    const at = (i) => low + ((high - low) * i) / counts.length;
    const values = panel(
      'Values',
      `How many ${this.rowNoun}s have which value`,
      h(
        'div',
        null,
        histogram(
          counts,
          features.limits[place],
          features.mean[place],
          `Histogram of the values of ${this.noun} ${features.number[place]}; mean ${text(features.mean[place])}`,
        ),
      ),
    );
    return withCsv(values, this.fileName('values', place), ['from', 'to', this.rowNoun + 's'], () =>
      counts.map((count, i) => [at(i), at(i + 1), count]),
    );
  }

  groups(place) {
    const { features } = this;
    if (!features.group_names.length) return null;
    // Of many groups the highest come first, because the others are not shown at once.
    const order = features.group_names.map((_, g) => g);
    if (order.length > FEW_GROUPS && features.group_title !== 'target')
      order.sort((a, b) => (features.group_means[place][b] ?? -1) - (features.group_means[place][a] ?? -1));
    const items = order.map((g) => {
      const label = features.group_names[g];
      const mean = features.group_means[place][g];
      if (mean === null) return { label, value: null };
      const deviation = features.group_deviations[place][g];
      return { label, value: mean, low: mean - deviation, high: mean + deviation };
    });
    const lead = {
      class: 'Average in each class',
      label: `Average over the ${this.rowNoun}s with each label`,
      target: `Average in each fifth of the ${this.rowNoun}s, by ${targetName(this.data)}`,
    }[features.group_title];
    return withCsv(
      panel(
        'By ' + (features.group_title === 'target' ? targetName(this.data) : features.group_title),
        lead + ', and one standard deviation to either side',
        bars(items, { limits: this.bounded ? [0, 1] : null, few: FEW_GROUPS }),
      ),
      this.fileName('averages', place),
      [features.group_title, 'average', 'deviation', this.rowNoun + 's'],
      () =>
        features.group_names.map((name, g) => [
          name,
          features.group_means[place][g],
          features.group_deviations[place][g],
          features.group_counts[g],
        ]),
    );
  }

  weights(place) {
    const { features } = this;
    if (!features.output_names.length) return null;
    const weights = features.weights[place];
    const order = weights.map((_, i) => i);
    if (features.output_title === 'task' && weights.length > 12)
      order.sort((a, b) => Math.abs(weights[b]) - Math.abs(weights[a]));
    else if (weights.length > FEW_GROUPS) order.sort((a, b) => weights[b] - weights[a]);
    const limit = largest(features.weights.flat());
    const items = order.map((i) => ({ label: features.output_names[i], value: weights[i] }));
    const speaks = {
      class: `How the ${this.noun} speaks for or against each class`,
      label: `How the ${this.noun} speaks for or against each label`,
      target:
        this.noun === 'topic'
          ? 'What a document that is about this topic alone has above or below the mean'
          : 'What one unit of the feature adds',
      task: `Weight of the ${this.noun} in each task`,
    }[features.output_title];
    return withCsv(
      panel('Weights', speaks, bars(items, { limits: [Math.min(0, -limit), limit], signs: true, few: FEW_GROUPS })),
      this.fileName('weights', place),
      [features.output_title, 'weight'],
      () => features.output_names.map((name, i) => [name, weights[i]]),
    );
  }

  topRanked(place) {
    const { features, data } = this;
    const rows = features.examples[place];
    const format = features.probabilities ? (value) => value.toFixed(3) : uniform(features.example_values[place]);
    const title = `The ${rows.length} top-ranked examples`;
    const file = (node) => {
      const names = features.example_input_names[place] ?? [];
      return withCsv(
        node,
        this.fileName('examples', place),
        [this.rowNoun, 'value', targetName(data), 'predicted', ...names],
        () =>
          rows.map((example, i) => [
            data.examples.names[example],
            features.example_values[place][i],
            data.examples.truths[example],
            data.examples.predictions[example],
            ...(names.length ? features.example_inputs[place][i] : []),
          ]),
      );
    };
    if (data.examples.pictures) {
      return file(
        panel(
          title,
          `The ${this.rowNoun}s with the highest values`,
          h(
            'ol',
            { class: 'thumbs' },
            rows.map((example, i) =>
              h(
                'li',
                null,
                rowLink(data, example, '', exampleThumb(data, this.exampleBytes, example)),
                h('div', { class: 'cap' }, answer(data, example)),
                h('div', { class: 'soft number' }, format(features.example_values[place][i])),
              ),
            ),
          ),
        ),
      );
    }
    if (data.kind === 'text' && data.examples.texts.some(Boolean)) {
      return file(
        panel(
          title,
          'The documents with the highest values',
          h(
            'ol',
            { class: 'texts' },
            rows.map((example, i) =>
              h(
                'li',
                null,
                h(
                  'div',
                  { class: 'meta' },
                  rowLink(data, example),
                  ' · ',
                  format(features.example_values[place][i]),
                  ' · ',
                  answer(data, example),
                ),
                data.examples.texts[example],
              ),
            ),
          ),
        ),
      );
    }
    return file(
      panel(
        title,
        'The rows with the highest values, and the inputs that the feature is most about',
        this.exampleTable(place, rows, format),
      ),
    );
  }

  exampleTable(place, rows, format) {
    const { features, data } = this;
    const inputs = features.example_inputs[place];
    const names = features.example_input_names[place] ?? features.loading_names[place].slice(0, inputs[0]?.length ?? 0);
    const numbers = names.map((_, j) => inputs.every((row) => typeof row[j] !== 'string'));
    const formats = names.map((_, j) => (numbers[j] ? uniform(inputs.map((row) => row[j])) : cellText));
    const known = data.examples.truths.some(Boolean);
    const head = h(
      'tr',
      null,
      h('th', { scope: 'col' }, 'row'),
      h('th', { scope: 'col', class: 'num' }, 'value'),
      known && h('th', { scope: 'col', class: 'input' + (data.regression ? ' num' : '') }, breakable(targetName(data))),
      data.regression && h('th', { scope: 'col', class: 'num' }, 'predicted'),
      names.map((name, j) =>
        h('th', { scope: 'col', class: 'input' + (numbers[j] ? ' num' : ''), title: name }, breakable(name)),
      ),
    );
    const line = (example, i) =>
      h(
        'tr',
        null,
        h('td', { class: 'name' }, rowLink(data, example)),
        h('td', { class: 'num' }, format(features.example_values[place][i])),
        known &&
          h(
            'td',
            { class: data.regression ? 'num' : data.confusion ? '' : 'answer' },
            data.regression ? data.examples.truths[example] : answer(data, example),
          ),
        data.regression && h('td', { class: 'num' }, data.examples.predictions[example]),
        inputs[i].map((value, j) => h('td', { class: numbers[j] ? 'num' : 'name' }, formats[j](value))),
      );
    return h(
      'div',
      { class: 'scroll' },
      h('table', { class: 'grid-table' }, h('thead', null, head), h('tbody', null, rows.map(line))),
    );
  }
}
