/** Questions before something that cannot be taken back. One at a time. */

export interface Question {
  title: string
  text: string
  action: string
  danger?: boolean
}

class Dialogs {
  question = $state<Question | null>(null)
  #answer: ((yes: boolean) => void) | null = null

  /** Ask; answers whether to continue. */
  confirm(question: Question): Promise<boolean> {
    this.#answer?.(false)
    this.question = question
    return new Promise((resolve) => (this.#answer = resolve))
  }

  settle(yes: boolean): void {
    this.question = null
    this.#answer?.(yes)
    this.#answer = null
  }
}

export const dialogs = new Dialogs()
