// [class or tag, contrast of its text with what is behind it] of every text that is seen, as WCAG 2.2 has it.
(() => {
  const linear = (part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const parts = (colour) => colour.match(/[\d.]+/g).map(Number);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const [r, g, b, opacity = 1] = parts(getComputedStyle(at).backgroundColor);
      if (opacity === 1) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const isText = (node) => node.nodeType === Node.TEXT_NODE && node.data.trim();
  const seen = (element) => element.checkVisibility() && [...element.childNodes].some(isText);
  const contrast = (element) => {
    const both = [luminance(parts(getComputedStyle(element).color)), luminance(behind(element))];
    return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
  };
  const texts = [...document.querySelectorAll("body *")].filter(seen);
  return texts.map((element) => [element.className || element.tagName, contrast(element)]);
})()
