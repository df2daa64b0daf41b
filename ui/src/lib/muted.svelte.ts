/** Errors that are not shown: kept by this browser, since they are a choice of the person who looks. */

const KEY = 'windlass.muted'

function stored(): string[] {
  try {
    const value: unknown = JSON.parse(localStorage.getItem(KEY) ?? '[]')
    return Array.isArray(value) ? value.filter((one) => typeof one === 'string') : []
  } catch {
    return [] // storage may be forbidden, or hold something else
  }
}

class Muted {
  list = $state.raw<string[]>(stored())

  has(fingerprint: string): boolean {
    return this.list.includes(fingerprint)
  }

  toggle(fingerprint: string): void {
    this.list = this.has(fingerprint) ? this.list.filter((one) => one !== fingerprint) : [...this.list, fingerprint].slice(-500)
    try {
      localStorage.setItem(KEY, JSON.stringify(this.list))
    } catch {
      // it holds for this page then
    }
  }
}

export const muted = new Muted()
