import { text as words } from './texts'
import { toasts } from './toasts.svelte'

/** Put a text on the clipboard and say so. */
export async function copy(text: string, label: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text)
    toasts.show('good', words.copied(label))
  } catch {
    toasts.show('bad', words.cannotCopy)
  }
}
