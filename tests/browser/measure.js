// What is outside its box, and what lies over something else: one line for each. Runs in the page.
() => {
  const found = []
  const slack = 2
  const CONTROLS = 'button, summary, input, select, textarea, a.btn, .chip, .switch'
  const shown = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true, contentVisibilityAuto: true })
  const name = (element) => {
    const label = element.closest('[data-job], [data-queue], [data-task], [data-process], section, nav, header') ?? element
    return `<${element.tagName.toLowerCase()} class="${element.getAttribute('class') ?? ''}"> in <${label.tagName.toLowerCase()}>`
  }
  const width = document.documentElement.clientWidth
  if (document.documentElement.scrollWidth > width) found.push(`the page is ${document.documentElement.scrollWidth} wide, the window ${width}`)

  // A wide window must not hide columns behind a scroll bar.
  if (width > 1000) {
    for (const box of document.querySelectorAll('.scroll-x')) {
      if (box.scrollWidth > box.clientWidth + slack) found.push(`a table is ${box.scrollWidth} wide in a box of ${box.clientWidth}: ${name(box)}`)
    }
  }

  // What is asked of an element many times is kept: nothing moves while this runs.
  const kept = new Map()
  const facts = (element) => {
    let known = kept.get(element)
    if (!known) {
      const style = getComputedStyle(element)
      known = {
        edge: element.getBoundingClientRect(),
        // A box that cuts or scrolls: what is beyond its edge is not seen over anything else.
        clips: style.overflowX !== 'visible' || style.overflowY !== 'visible',
        block: !(element instanceof SVGElement) && style.display !== 'inline' && style.display !== 'contents',
        sticky: style.position === 'sticky',
        // What opens over the page, such as a menu: it is in no box but the window.
        floats: style.position === 'fixed' || (style.position === 'absolute' && Number(style.zIndex) >= 10),
      }
      kept.set(element, known)
    }
    return known
  }
  const layer = (element) => {
    for (let one = element; one && one !== document.body; one = one.parentElement) if (facts(one).floats || facts(one).sticky) return one
    return null
  }

  /** The part of a rectangle that is seen; reported when it leaves a box around it that does not cut it. */
  function within(rect, parent, text) {
    let box = { left: rect.left, right: rect.right, top: rect.top, bottom: rect.bottom }
    for (let one = parent; one && one !== document.body; one = one.parentElement) {
      const { edge, clips, block, floats } = facts(one)
      if (clips) {
        box = { left: Math.max(box.left, edge.left), right: Math.min(box.right, edge.right), top: Math.max(box.top, edge.top), bottom: Math.min(box.bottom, edge.bottom) }
      } else if (block && box.right > box.left && (box.left < edge.left - slack || box.right > edge.right + slack)) {
        found.push(`"${text}" is outside ${name(one)}: ${Math.round(box.left)}..${Math.round(box.right)} in ${Math.round(edge.left)}..${Math.round(edge.right)}`)
        break
      }
      if (floats) {
        if (edge.left < -slack || edge.right > width + slack) found.push(`${name(one)} is outside the window: ${Math.round(edge.left)}..${Math.round(edge.right)}`)
        break
      }
    }
    return box
  }
  const seen = (box) => box.right - box.left > 1 && box.bottom - box.top > 1
  const hidden = (element) => element.closest('.sr-only, .skip, option, datalist, dialog:not([open]), title') || !shown(element)

  const texts = []
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const text = node.textContent.trim().slice(0, 40)
    const parent = node.parentElement
    if (!text || !parent || hidden(parent)) continue
    const range = document.createRange()
    range.selectNodeContents(node)
    for (const rect of range.getClientRects()) {
      const box = within(rect, parent, text)
      if (seen(box)) texts.push({ ...box, of: node, text, layer: layer(parent) })
    }
  }
  const controls = []
  for (const element of document.querySelectorAll(CONTROLS)) {
    if (hidden(element) || !element.parentElement) continue
    const text = `${element.tagName.toLowerCase()} ${(element.getAttribute('aria-label') ?? element.textContent).trim().slice(0, 40)}`
    const box = within(element.getBoundingClientRect(), element.parentElement, text)
    if (seen(box)) controls.push({ ...box, of: element, text, layer: layer(element) })
  }

  /** Those that share more than a line's height and some width. `same`: the two belong together. */
  function overlaps(boxes, same) {
    boxes.sort((one, other) => one.top - other.top)
    boxes.forEach((one, at) => {
      for (let next = at + 1; next < boxes.length && boxes[next].top < one.bottom - slack; next++) {
        const other = boxes[next]
        if (other.layer !== one.layer || same(one.of, other.of)) continue
        const across = Math.min(one.right, other.right) - Math.max(one.left, other.left)
        const down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top)
        // Lines of one text block may touch; texts side by side may not share a column.
        if (across > slack && down > 5) found.push(`"${one.text}" lies over "${other.text}"`)
      }
    })
  }
  overlaps(texts, (one, other) => one === other)
  overlaps(controls, (one, other) => one.contains(other) || other.contains(one))
  return [...new Set(found)].slice(0, 12)
}
