// Ask the search again for words that no page has, with one typing error allowed.
//
// Material asks its worker by messages of type 2, and the worker answers by messages of type 3. A word that ends in ~1
// stands for all words that one edit turns into it: a letter more, less or other, or two letters exchanged.
(() => {
  const QUERY = 2;
  const RESULT = 3;
  const SHORTEST = 4; // a word of fewer letters is one edit away from too many words
  const send = Worker.prototype.postMessage;
  const queries = new WeakMap();

  function unknownWords(query, items) {
    const found = items.flat().flatMap(({ terms }) => Object.keys(terms).filter((term) => terms[term]));
    return query
      .toLowerCase()
      .split(/\s+/)
      .filter((word) => word.length >= SHORTEST && !found.some((term) => word.includes(term)));
  }

  function askAgain({ target, data }) {
    const query = queries.get(target);
    if (data.type !== RESULT || !query) return;
    queries.delete(target);
    const unknown = unknownWords(query, data.data.items);
    if (!unknown.length || /["~*^:]/.test(query)) return;
    const words = query.split(/\s+/).map((word) => (unknown.includes(word.toLowerCase()) ? `${word}~1` : word));
    send.call(target, { type: QUERY, data: words.join(" ") });
  }

  Worker.prototype.postMessage = function (message, ...rest) {
    if (message && message.type === QUERY) {
      if (!queries.has(this)) this.addEventListener("message", askAgain);
      queries.set(this, message.data.trim());
    }
    return send.call(this, message, ...rest);
  };
})();
