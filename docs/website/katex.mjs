// Render formulas with KaTeX: each JSON line in has a formula, each line out its HTML or an error.
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
