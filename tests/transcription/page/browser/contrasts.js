// The contrast of each text on the screen to its background, by the formulas of WCAG 2:
// a list of [contrast, element, text].
const parse = (color) => {
  const [red, green, blue, alpha = 1] = color.match(/[\d.]+/g).map(Number);
  return [red, green, blue, alpha];
};
const over = (color, under) => under.map((value, i) => color[3] * color[i] + (1 - color[3]) * value);
const background = (element) => {
  if (element === null) return [255, 255, 255];
  const own = parse(getComputedStyle(element).backgroundColor);
  return over(own, background(element.parentElement));
};
const linear = (value) => (value <= 10.31475 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4);
const luminance = (color) =>
  [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => sum + weight * linear(color[i]), 0);

const found = [];
for (const element of document.querySelectorAll("body *:not(script):not(style):not(option)")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!own || !element.checkVisibility()) continue;
  const behind = background(element);
  const text = over(parse(getComputedStyle(element).color), behind);
  const [light, dark] = [text, behind].map(luminance).sort((one, other) => other - one);
  const name = `${element.tagName}.${element.className}`;
  found.push([(light + 0.05) / (dark + 0.05), name, element.textContent.slice(0, 30)]);
}
return found;
