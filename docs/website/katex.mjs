// Render formulas with KaTeX: one JSON line in, one JSON line out. An error of KaTeX is sent back.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const { default: katex } = await import(pathToFileURL(process.argv[2]));

for await (const line of createInterface({ input: process.stdin })) {
  const { formula, display } = JSON.parse(line);
  let answer;
  try {
    const html = katex.renderToString(formula, { displayMode: display, strict: "error" });
    answer = { html };
  } catch (error) {
    answer = { error: error.message };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
