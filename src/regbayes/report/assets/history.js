// Convergence: the objective and its terms over the iterations.

function historySection({ history }) {
  const hidden = new Set();
  const terms = history.term_names.map((name, i) => ({
    name,
    values: history.terms[i],
    stroke: `var(--${SERIES[i % SERIES.length]})`,
    width: 1.6,
  }));
  const series = [...terms, { name: 'objective', values: history.objective, stroke: 'var(--text)', width: 2.4 }];
  const seen = () => series.filter(({ name }) => !hidden.has(name));
  const readout = h('p', { class: 'readout' });
  const tell = (i) => {
    const parts = seen().map(({ name, values }) => `${name} ${text(values[i], 5)}`);
    readout.textContent = `iteration ${history.iterations[i]}: ` + parts.join(', ');
  };
  const change = ({ values }) =>
    values.map((value) => (value === null || values[0] === null ? null : value - values[0]));
  const draw = (width) => {
    const finite = seen()
      .flatMap(change)
      .filter((value) => value !== null);
    const [low, high] = [Math.min(0, ...finite), Math.max(0, ...finite)];
    const span = [history.iterations[0], history.iterations.at(-1)];
    const options = { xLabel: 'iteration', yLabel: 'change since the start', whole: true };
    const { x, y, box, lines } = axes(width, 320, span, [low, high === low ? low + 1 : high], options);
    const at = (i) => x(history.iterations[i]);
    const cursor = segment(0, box.top, 0, box.bottom, { class: 'zero', opacity: 0 });
    const follow = (event) => {
      const bounds = cover.getBoundingClientRect();
      const pointed = span[0] + ((span[1] - span[0]) * (event.clientX - bounds.left)) / (bounds.width || 1);
      const i = ranked(history.iterations, (value) => -Math.abs(value - pointed))[0];
      for (const [name, value] of [
        ['x1', at(i)],
        ['x2', at(i)],
        ['opacity', 1],
      ])
        cursor.setAttribute(name, value);
      tell(i);
    };
    const frame = { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top };
    const cover = s('rect', { ...frame, fill: 'transparent', pointermove: follow, pointerdown: follow });
    const line = (one) => {
      const points = change(one).map((value, i) => (value === null ? '' : `${at(i)},${y(value)}`));
      return s('polyline', { fill: 'none', stroke: one.stroke, 'stroke-width': one.width, points: points.join(' ') });
    };
    return [320, [lines, segment(box.left, y(0), box.right, y(0), { class: 'zero' }), seen().map(line), cursor, cover]];
  };
  const picture = h('div', null, chart('The objective and its terms over the iterations', draw));
  const toggle = (event, name) => {
    if (!hidden.delete(name)) hidden.add(name);
    event.currentTarget.setAttribute('aria-pressed', String(!hidden.has(name)));
    redraw();
  };
  const legend = series.map(({ name, stroke }) => {
    const attributes = { type: 'button', 'aria-pressed': 'true', click: (event) => toggle(event, name) };
    return h('button', attributes, h('i', { style: { background: stroke } }), name);
  });
  tell(history.iterations.length - 1);
  const rises = history.n_rises
    ? `It rose ${plural(history.n_rises, 'time')}, by ${text(history.largest_rise)} at most.`
    : 'It never rose.';
  const lead = `${plural(history.n_iter, 'iteration')} in ${text(history.seconds, 2)} s. The objective is the sum of its
    terms, and the fit makes it small. ${history.note || rises}`;
  const file = {
    name: 'objective',
    heads: ['iteration', 'objective', ...history.term_names],
    rows: () => history.iterations.map((at, i) => [at, history.objective[i], ...history.terms.map((term) => term[i])]),
  };
  const about = 'And its terms, less what they were at the start';
  const content = [h('div', { class: 'legend' }, legend), picture, readout];
  return foldedSection('history', 'Convergence', lead, panel('The objective', about, file, content));
}
