/** The present, once a second, by the server's clock: relative times do not depend on the browser's. */

class Clock {
  #skew = 0
  now = $state(Date.now())

  constructor() {
    setInterval(() => (this.now = Date.now() + this.#skew), 1000)
  }

  /** What the server said the time is. Small differences are the way, not the clock. */
  learn(serverMs: number): void {
    const skew = serverMs - Date.now()
    if (Math.abs(skew - this.#skew) < 1500) return
    this.#skew = Math.abs(skew) < 1500 ? 0 : skew
    this.now = Date.now() + this.#skew
  }
}

export const clock = new Clock()
