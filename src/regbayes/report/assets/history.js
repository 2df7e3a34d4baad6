// Convergence: the objective and its terms over the iterations.

function historySection(data) {
  const { history } = data;
  const hidden = new Set();
  const series = [
    ...history.term_names.map((name, i) => ({
      name,
      values: history.terms[i],
      colour: `var(--${SERIES[i % SERIES.length]})`,
      width: 1.6,
    })),
    { name: 'objective', values: history.objective, colour: 'var(--text)', width: 2.4 },
  ];
  const readout = h('p', { class: 'readout' }, '');
  const box = h('div');
  const tell = (i) => {
    const parts = series
      .filter(({ name }) => !hidden.has(name))
      .map(({ name, values }) => `${name} ${text(values[i], 5)}`);
    readout.textContent = `iteration ${history.iterations[i]}: ` + parts.join(', ');
  };
  const lines = () =>
    chart('The objective and its terms over the iterations', (width) => {
      const seen = series
        .filter(({ name }) => !hidden.has(name))
        .map((one) => ({
          ...one,
          change: one.values.map((value) => (value === null || one.values[0] === null ? null : value - one.values[0])),
        }));
      const finite = seen.flatMap(({ change }) => change).filter((value) => value !== null);
      const [low, high] = [Math.min(0, ...finite), Math.max(0, ...finite)];
      const span = [history.iterations[0], history.iterations.at(-1)];
      const {
        x,
        y,
        box: frame,
        lines: grid,
      } = axes(width, 320, span, [low, high === low ? low + 1 : high], {
        xLabel: 'iteration',
        yLabel: 'change since the start',
        whole: true,
      });
      const cursor = s('line', { class: 'zero', y1: frame.top, y2: frame.bottom, opacity: 0 });
      const follow = (event) => {
        const bounds = cover.getBoundingClientRect();
        const at = span[0] + ((span[1] - span[0]) * (event.clientX - bounds.left)) / (bounds.width || 1);
        const i = history.iterations.reduce(
          (best, value, j) => (Math.abs(value - at) < Math.abs(history.iterations[best] - at) ? j : best),
          0,
        );
        cursor.setAttribute('x1', x(history.iterations[i]));
        cursor.setAttribute('x2', x(history.iterations[i]));
        cursor.setAttribute('opacity', 1);
        tell(i);
      };
      const cover = s('rect', {
        x: frame.left,
        y: frame.top,
        width: frame.right - frame.left,
        height: frame.bottom - frame.top,
        fill: 'transparent',
        pointermove: follow,
        pointerdown: follow,
      });
      const paths = seen.map(({ change, colour: stroke, width: thick }) =>
        s('polyline', {
          fill: 'none',
          stroke,
          'stroke-width': thick,
          'stroke-linejoin': 'round',
          points: change.map((value, i) => (value === null ? '' : `${x(history.iterations[i])},${y(value)}`)).join(' '),
        }),
      );
      return [
        320,
        [grid, s('line', { class: 'zero', x1: frame.left, x2: frame.right, y1: y(0), y2: y(0) }), paths, cursor, cover],
      ];
    });
  const legend = h(
    'div',
    { class: 'legend' },
    series.map(({ name, colour: stroke }) =>
      h(
        'button',
        {
          type: 'button',
          'aria-pressed': 'true',
          click: (event) => {
            if (!hidden.delete(name)) hidden.add(name);
            event.currentTarget.setAttribute('aria-pressed', String(!hidden.has(name)));
            box.replaceChildren(lines());
          },
        },
        h('i', { style: { background: stroke } }),
        name,
      ),
    ),
  );
  box.append(lines());
  tell(history.iterations.length - 1);
  const rises = history.note
    ? history.note
    : history.n_rises
      ? `It rose ${history.n_rises} time${history.n_rises === 1 ? '' : 's'}, by ${text(history.largest_rise)} at most.`
      : 'It never rose.';
  return foldedSection(
    'history',
    'Convergence',
    `${plural(history.n_iter, 'iteration')} in ${text(history.seconds, 2)} s. The objective is the sum of its terms, and the fit makes it small. ${rises}`,
    withCsv(
      panel('The objective', 'And its terms, less what they were at the start', legend, box, readout),
      'objective',
      ['iteration', 'objective', ...history.term_names],
      () => history.iterations.map((at, i) => [at, history.objective[i], ...history.terms.map((term) => term[i])]),
    ),
  );
}
