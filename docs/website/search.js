// Put exact words before longer ones, and look for a word that no page has with one typing error allowed.
//
// Material asks its worker by messages of type 2, and the worker answers each by a message of type 3, in order. In a
// query, word^20 stands for exactly this word, which counts 20 times. word~1 stands for all words that one edit turns
// into it: a letter more, less or other, or two letters exchanged. A plain word stands for all words that begin with it.
(() => {
  const QUERY = 2;
  const RESULT = 3;
  const SHORTEST = 4; // a word of fewer letters is one edit away from too many words
  const send = Worker.prototype.postMessage;
  const waiting = new WeakMap(); // for each worker, the queries without an answer; null for one that is not asked again

  function wordsOf(query) {
    return /["~*^:+]/.test(query) ? [] : query.toLowerCase().split(/\s+/).filter(Boolean);
  }

  function unknownWords(words, items) {
    const found = items.flat().flatMap(({ terms }) => Object.keys(terms).filter((term) => terms[term]));
    return words.filter((word) => word.length >= SHORTEST && !found.some((term) => word.includes(term)));
  }

  function ask(worker, query, data, rest) {
    waiting.get(worker).push(query);
    return send.call(worker, { type: QUERY, data }, ...rest);
  }

  function askAgain({ target, data }) {
    if (data.type !== RESULT) return;
    const query = waiting.get(target).shift();
    if (!query || waiting.get(target).length) return;
    const words = wordsOf(query);
    const unknown = unknownWords(words, data.data.items);
    if (unknown.length) {
      ask(target, null, words.map((word) => (unknown.includes(word) ? `${word}~1` : word)).join(" "), []);
    }
  }

  Worker.prototype.postMessage = function (message, ...rest) {
    if (!message || message.type !== QUERY) return send.call(this, message, ...rest);
    if (!waiting.has(this)) {
      waiting.set(this, []);
      this.addEventListener("message", askAgain);
    }
    const exact = wordsOf(message.data).map((word) => `${word}^20`);
    return ask(this, message.data, [message.data, ...exact].join(" "), rest);
  };
})();
