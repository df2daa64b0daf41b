/** Light or dark: as the system says, until the user chooses. */

export type Choice = 'system' | 'light' | 'dark'

const KEY = 'windlass.theme'
const system = matchMedia('(prefers-color-scheme: dark)')

function stored(): Choice {
  try {
    const value = localStorage.getItem(KEY)
    return value === 'light' || value === 'dark' ? value : 'system'
  } catch {
    return 'system' // storage may be forbidden
  }
}

class Theme {
  choice = $state<Choice>(stored())
  #systemDark = $state(system.matches)
  dark = $derived(this.choice === 'system' ? this.#systemDark : this.choice === 'dark')

  constructor() {
    system.addEventListener('change', () => {
      this.#systemDark = system.matches
      this.apply()
    })
    this.apply()
  }

  apply(): void {
    document.documentElement.dataset.theme = this.dark ? 'dark' : 'light'
  }

  toggle(): void {
    this.choice = this.dark ? 'light' : 'dark'
    try {
      localStorage.setItem(KEY, this.choice)
    } catch {
      // it holds for this page then
    }
    this.apply()
  }
}

export const theme = new Theme()
