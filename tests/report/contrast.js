// The worst contrast of text against its ground, by the formula of WCAG 2, and where it is.
() => {
  const channel = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const luminance = (colour) => {
    const [red, green, blue] = colour.match(/[\d.]+/g).map((value) => channel(value / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ground = (node) => {
    const colour = getComputedStyle(node).backgroundColor;
    return /, 0\)|transparent/.test(colour) ? ground(node.parentElement) : colour;
  };
  const texts =
    'h1, h2, h3, p, dt, dd, td:not(.none), th, .label, .figure, .name, .hint, .number, button, .cap, .wrong, .soft';
  const shown = [...document.querySelectorAll(texts)].filter((node) => node.textContent.trim() && node.offsetParent);
  const found = shown.map((node) => {
    const [low, high] = [luminance(getComputedStyle(node).color), luminance(ground(node))].sort((a, b) => a - b);
    return [(high + 0.05) / (low + 0.05), `${node.tagName}.${node.className}: ${node.textContent.slice(0, 40)}`];
  });
  return found.sort((a, b) => a[0] - b[0])[0];
};
