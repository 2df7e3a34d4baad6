// The features: a list that can be sorted and walked with the arrow keys, and everything about the chosen one.

const FEW_GROUPS = 14;
const SORTS = [
  { key: 'use', label: 'use', of: (features) => features.use },
  { key: 'separation', label: 'separation', of: (features) => features.separation },
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
    const lacking = { separation: !features.separation_name, returned: !features.returned };
    const sorts = SORTS.filter((sort) => !lacking[sort.key]);
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
    this.fillList();
    this.select(this.order[0], false);
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
        this.status,
      ),
      this.detail,
    );
  }

  sortBy(key) {
    this.sort = key;
    const keys = SORTS.find((sort) => sort.key === key).of(this.features);
    this.order.sort((a, b) => (keys[b] ?? -Infinity) - (keys[a] ?? -Infinity) || a - b);
    for (const button of this.sortButtons) button.setAttribute('aria-pressed', String(button.dataset.sort === key));
    this.fillList();
    this.select(this.order[0], false);
    this.list.scrollTop = 0;
  }

  fillList() {
    const { features } = this;
    const separating = this.sort === 'separation';
    const measure = separating ? features.separation : features.use;
    const top = Math.max(...measure.map((value) => value ?? 0), 1e-12);
    const format = uniform(measure);
    this.options = new Map();
    const options = this.order.map((place) => {
      const share = (measure[place] ?? 0) / (this.bounded || separating ? Math.max(1, top) : top);
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
    if (features.pictures && means.length && features.probabilities) {
      const high = means
        .map((mean, g) => [mean ?? -1, g])
        .filter(([mean]) => mean > 0.5)
        .sort((a, b) => b[0] - a[0]);
      return high.length
        ? 'most of ' +
            high
              .slice(0, 4)
              .map(([, g]) => features.group_names[g])
              .join(', ')
        : 'a minority everywhere';
    }
    if (features.telling.length) return features.telling[place].slice(0, 4).join(', ');
    return features.loading_names[place]
      .slice(0, 3)
      .map((name, i) => (features.loading_values[place][i] < 0 ? '−' : '') + name)
      .join(', ');
  }

  key(event) {
    const at = this.order.indexOf(this.current);
    const goal = {
      ArrowDown: at + 1,
      ArrowRight: at + 1,
      ArrowUp: at - 1,
      ArrowLeft: at - 1,
      Home: 0,
      End: this.order.length - 1,
    }[event.key];
    if (goal === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.select(this.order[Math.min(this.order.length - 1, Math.max(0, goal))], true);
  }

  step(by) {
    const at = this.order.indexOf(this.current) + by;
    if (at < 0 || at >= this.order.length) return;
    this.select(this.order[at], false);
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
    const box = this.list.getBoundingClientRect();
    const mine = node.getBoundingClientRect();
    if (box.height && (mine.top < box.top || mine.bottom > box.bottom)) {
      this.list.scrollTop += mine.top - box.top - (box.height - mine.height) / 2;
    }
    this.detail.replaceChildren(...this.about(place));
    this.status.textContent = `${sentence(this.noun)} ${this.features.number[place]}, ${this.order.indexOf(place) + 1} of ${this.order.length}`;
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
    const at = this.order.indexOf(place);
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
          !features.all_in_use[number] && h('span', { class: 'soft small' }, ' (never fully on)'),
        ),
        h(
          'div',
          { class: 'steps' },
          h('span', { class: 'soft small' }, `${at + 1} of ${this.order.length} `),
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
    );
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
    const items = features.loading_names[place].map((label, i) => ({
      label,
      value: features.loading_values[place][i],
    }));
    const telling = features.telling[place];
    return panel(
      title,
      sentence(features.loading_title) + '; the largest ones',
      telling && h('p', { class: 'telling' }, h('span', { class: 'soft' }, 'Telling words: '), telling.join(', ')),
      bars(items),
    );
  }

  values(place) {
    const { features } = this;
    const counts = features.histogram[place];
    return panel(
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
      target: `Average in each fifth of the ${this.rowNoun}s, by target`,
    }[features.group_title];
    return panel(
      'By ' + features.group_title,
      lead + ', and one standard deviation to either side',
      bars(items, { limits: this.bounded ? [0, 1] : null, few: FEW_GROUPS }),
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
          : 'Weight of the feature in the target',
      task: `Weight of the ${this.noun} in each task`,
    }[features.output_title];
    return panel(
      'Weights',
      speaks,
      bars(items, { limits: [Math.min(0, -limit), limit], signs: true, few: FEW_GROUPS }),
    );
  }

  topRanked(place) {
    const { features, data } = this;
    const rows = features.examples[place];
    const format = features.probabilities ? (value) => value.toFixed(3) : uniform(features.example_values[place]);
    const title = `The ${rows.length} top-ranked examples`;
    if (data.examples.pictures) {
      return panel(
        title,
        `The ${this.rowNoun}s with the highest values`,
        h(
          'ol',
          { class: 'thumbs' },
          rows.map((example, i) =>
            h(
              'li',
              null,
              exampleThumb(data, this.exampleBytes, example),
              h('div', { class: 'cap' }, answer(data, example)),
              h('div', { class: 'soft number' }, format(features.example_values[place][i])),
            ),
          ),
        ),
      );
    }
    if (data.kind === 'text' && data.examples.texts.some(Boolean)) {
      return panel(
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
                data.examples.names[example],
                ' · ',
                format(features.example_values[place][i]),
                ' · ',
                answer(data, example),
              ),
              data.examples.texts[example],
            ),
          ),
        ),
      );
    }
    return panel(
      title,
      'The rows with the highest values, and their values of the largest inputs',
      this.exampleTable(place, rows, format),
    );
  }

  exampleTable(place, rows, format) {
    const { features, data } = this;
    const inputs = features.example_inputs[place];
    const names = features.loading_names[place].slice(0, inputs[0]?.length ?? 0);
    const formats = names.map((_, i) => uniform(inputs.map((row) => row[i])));
    const known = data.examples.truths.some(Boolean);
    const head = h(
      'tr',
      null,
      h('th', null, 'row'),
      h('th', { class: 'num' }, 'value'),
      known && h('th', { class: data.regression ? 'num' : '' }, 'target'),
      data.regression && h('th', { class: 'num' }, 'predicted'),
      names.map((name) => h('th', { class: 'num input', title: name }, name)),
    );
    const line = (example, i) =>
      h(
        'tr',
        null,
        h('td', { class: 'name' }, data.examples.names[example]),
        h('td', { class: 'num' }, format(features.example_values[place][i])),
        known &&
          h(
            'td',
            { class: data.regression ? 'num' : '' },
            data.regression ? data.examples.truths[example] : answer(data, example),
          ),
        data.regression && h('td', { class: 'num' }, data.examples.predictions[example]),
        inputs[i].map((value, j) => h('td', { class: 'num' }, formats[j](value))),
      );
    return h(
      'div',
      { class: 'scroll' },
      h('table', { class: 'grid-table' }, h('thead', null, head), h('tbody', null, rows.map(line))),
    );
  }
}
