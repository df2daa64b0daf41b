/** Short notes on what was done, at the edge of the window. */

export interface Toast {
  id: number
  kind: 'good' | 'bad' | 'plain'
  text: string
  detail?: string
}

let last = 0

class Toasts {
  list = $state<Toast[]>([])

  show(kind: Toast['kind'], text: string, detail?: string): void {
    const id = ++last
    this.list = [...this.list.slice(-3), { id, kind, text, detail }]
    setTimeout(() => this.close(id), kind === 'bad' ? 9000 : 4000)
  }

  close(id: number): void {
    this.list = this.list.filter((toast) => toast.id !== id)
  }
}

export const toasts = new Toasts()
